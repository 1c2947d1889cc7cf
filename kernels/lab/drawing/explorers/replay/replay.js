// The page of the replay: controls, source, picture and text. replay_logic.js stands above it in
// the module, since a widget's module is one file without a neighbour to import.

const SVG = "http://www.w3.org/2000/svg";
const PER_REQUEST_MS = 600;
const CALMER = 2.5;  // times as slow where a reader asked for less motion

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawing(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

/** Slanted lines, so that what is written is not told by its colour alone. */
function hatching(id) {
  const pattern = drawing("pattern", { id, width: 5, height: 5, patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)" });
  pattern.append(drawing("rect", { width: 5, height: 5, class: "hatch-ground" }),
    drawing("rect", { width: 2.4, height: 5, class: "hatch-line" }));
  return pattern;
}

function tile([name, value, how]) {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, element("strong", {}, value), element("small", {}, how)));
}

/** A list of the recordings, by their groups. */
function chooser(recordings, choose) {
  const control = element("select");
  for (const group of new Set(recordings.map((one) => one.group))) {
    const options = recordings.filter((one) => one.group === group)
      .map((one) => element("option", { value: one.key }, one.label));
    control.append(...(group ? [element("optgroup", { label: group }, ...options)] : options));
  }
  control.addEventListener("change", () => choose(control.value));
  return { control, box: element("label", {}, element("span", {}, "Kernel"), control) };
}

const NOTES = "Keys: arrows step by a request; with Shift, or Page Up and Page Down, by a program; " +
  "Space plays, Home and End go to the ends. Programs, rows and columns count from 0. The number in " +
  "a grid, and its shade, say how many requests wanted an element; bytes count every lane. The " +
  "ideal is each input once and each output once. Programs stand in the order in which they were " +
  "recorded; a GPU runs many at a time, in no fixed order.";
const NOTES_CUDA = " A request is one warp’s. Between two barriers a warp’s requests are told " +
  "instruction by instruction.";

let hatches = 0;

function render({ model, el }) {
  const recordings = model.get("recordings");
  const chosen = () => recordings.find((one) => one.key === model.get("kernel"));
  const go = (step) => {
    model.set("step", step);
    model.save_changes();
  };
  let clock = null;

  const kernel = chooser(recordings, (key) => {
    pause();
    model.set("step", 1);
    model.set("kernel", key);
    model.save_changes();
  });
  const look = element("p", { class: "look" });
  const slider = element("input", { type: "range", min: 1, step: 1, "aria-label": "Request" });
  const button = (label, act, ...text) => {
    const made = element("button", { type: "button", "aria-label": label, title: label }, ...text);
    made.addEventListener("click", act);
    return made;
  };
  const word = (text) => element("span", {}, text);  // where there is room for it
  const by = (key, shift = false) => () => {
    pause();
    go(stepBy(chosen(), model.get("step"), key, shift));
  };
  const play = button("Play", () => (clock === null ? start() : pause()), "Play");
  const name = (text) => {
    play.textContent = text;
    play.setAttribute("aria-label", text);
    play.setAttribute("title", text);
  };
  const moves = element("div", { class: "moves" },
    button("Previous program", by("PageDown"), "« ", word("program")),
    button("Previous request", by("ArrowLeft"), "‹ ", word("request")),
    play,
    button("Next request", by("ArrowRight"), word("request"), " ›"),
    button("Next program", by("PageUp"), word("program"), " »"));
  const spoken = element("p", { class: "text", "aria-live": "polite" });
  const source = element("pre", { tabindex: 0, role: "region", "aria-label": "Source of the kernel" });
  const hatch = `fk-written-${hatches += 1}`;
  const shown = drawing("svg", {
    role: "img", "aria-label": "The tensors as grids; the text says what they show",
  });
  const values = element("dl");
  const list = element("ul", { "aria-label": "Each tensor so far" });
  const notes = element("p", { class: "notes" });
  const root = element("div", {
    class: "fk-explorer fk-replay", role: "group", "aria-label": "Replay",
    "data-lm-suppress-shortcuts": "true",  // JupyterLab's own, which would take the keys
  }, kernel.box, look, moves, slider, spoken, source, shown, values, list, notes);

  function start() {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    spoken.setAttribute("aria-live", "off");  // nobody can listen to all of it
    name("Pause");
    if (model.get("step") >= chosen().requests.length) go(1);
    clock = setInterval(() => {
      if (model.get("step") < chosen().requests.length) go(model.get("step") + 1);
      else pause();
    }, calm ? CALMER * PER_REQUEST_MS : PER_REQUEST_MS);
  }

  function pause() {
    if (clock === null) return;
    clearInterval(clock);
    clock = null;
    name("Play");
    spoken.setAttribute("aria-live", "polite");
  }

  shown.addEventListener("click", () => slider.focus({ preventScroll: true }));  // for the keys
  slider.addEventListener("input", () => {
    pause();
    go(slider.valueAsNumber);
  });
  root.addEventListener("keydown", (event) => {
    if (event.target === kernel.control || event.target === source) return;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === " " && event.target.tagName !== "BUTTON") {
      event.preventDefault();
      play.click();
      return;
    }
    const step = stepBy(chosen(), model.get("step"), event.key, event.shiftKey);
    if (step === null) return;
    event.preventDefault();
    event.stopPropagation();  // or a notebook takes the key for its own
    pause();
    go(step);
  });

  let laid = 0;  // the width that it was drawn for
  function draw() {
    const recording = chosen();
    const found = played(recording, model.get("step"));
    laid = values.clientWidth;
    const width = laid || 640;  // 0 while the page has not laid it out
    const { height, shapes } = replayChart(recording, found, width, hatch);
    shown.setAttribute("width", width);
    shown.setAttribute("height", height);
    shown.setAttribute("viewBox", `0 0 ${width} ${height}`);  // on paper it shrinks, and is whole
    shown.replaceChildren(hatching(hatch), ...shapes.map((shape) => drawing(...shape)));
    return { recording, found };
  }

  function write(recording) {
    source.replaceChildren(...recording.source.map((line, index) => element("code", {},
      element("b", { "aria-hidden": "true" }, String(index + 1).padStart(3)), ` ${line}\n`)));
  }

  let written = null;
  function update() {
    const { recording, found } = draw();
    if (written !== recording.key) {
      write(recording);
      written = recording.key;
    }
    kernel.control.value = recording.key;
    const alone = recordings.length === 1 ? [element("strong", {}, recording.label), " "] : [];
    look.replaceChildren(...alone, recording.look);
    slider.max = recording.requests.length;
    slider.value = model.get("step");
    slider.setAttribute("aria-valuetext", `request ${model.get("step")} of ${recording.requests.length}`);
    spoken.textContent = sentence(recording, found);
    source.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const line = source.children[found.now.request[LINE]];
    if (line) {
      line.setAttribute("aria-current", "true");
      source.scrollTop = line.offsetTop - (source.clientHeight - line.offsetHeight) / 2;
    }
    values.replaceChildren(...figures(recording, found).map(tile));
    list.replaceChildren(...soFar(recording, found).map(({ name, text }) =>
      element("li", {}, element("code", {}, name), ` ${text}`)));
    notes.textContent = NOTES + (recording.language === "Triton" ? "" : NOTES_CUDA);
  }

  kernel.box.hidden = recordings.length === 1;
  el.append(root);
  update();
  const watcher = new ResizeObserver(() => {
    if (values.clientWidth !== laid) draw();
  });
  watcher.observe(values);
  for (const key of ["kernel", "step"]) model.on(`change:${key}`, update);
  return () => {
    pause();
    watcher.disconnect();
    for (const key of ["kernel", "step"]) model.off(`change:${key}`, update);
  };
}

export default { render };
