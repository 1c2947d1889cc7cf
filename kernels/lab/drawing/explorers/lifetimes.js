// The page of the explorer of lifetimes: a choice, a slider, the picture and its words.
// lifetimes_logic.js stands above it in the module, since a widget's module is one file without a
// neighbour to import.

const SVG = "http://www.w3.org/2000/svg";

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

/** Slanted lines, so that what is held in vain is not told by its colour alone. */
function hatching(id) {
  const pattern = drawing("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)" });
  pattern.append(drawing("rect", { width: 1.6, height: 6, class: "hatch-line" }));
  return pattern;
}

function figure(name, value, how) {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, element("strong", {}, value), element("small", {}, how)));
}

const NOTES = "Keys: arrows step, Home and End go to the ends. A box is a tensor: as high as its " +
  "bytes, as long as its memory is taken. A notch marks a launch that reads it. Slanted: still held, " +
  "and no longer read. The dashed line is the most at once. The input and the parameters are not " +
  "drawn.";

let hatches = 0;

function render({ model, el }) {
  const flows = () => model.get("flows");
  const chosen = () => flows()[model.get("chosen")];
  const set = (changes) => {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  };
  const control = element("select");
  flows().forEach(({ label }, at) => control.append(element("option", { value: at }, label)));
  control.addEventListener("change", () => set({ launch: 1, chosen: Number(control.value) }));
  const panel = element("div", { class: "controls" },
    element("label", {}, element("span", {}, "Layer"), control));
  const slider = element("input", { type: "range", min: 1, step: 1, "aria-label": "Launch" });
  const move = (key) => set({ launch: stepBy(chosen(), model.get("launch"), key) });
  const button = (label, key, text) => {
    const made = element("button", { type: "button", "aria-label": label, title: label }, text);
    made.addEventListener("click", () => move(key));
    return made;
  };
  const moves = element("div", { class: "moves" },
    button("Previous launch", "ArrowLeft", "‹ launch"),
    button("Next launch", "ArrowRight", "launch ›"));
  const values = element("dl");
  const hatch = `fk-held-${hatches += 1}`;
  const picture = drawing("svg", {
    role: "img", "aria-label": "Memory over the launches; the text below says what it shows",
  });
  const spoken = element("p", { class: "text", "aria-live": "polite" });
  const root = element("div", {
    class: "fk-explorer fk-lifetimes", role: "group", "aria-label": "Lifetimes in a layer",
    "data-lm-suppress-shortcuts": "true",  // JupyterLab's own, which would take the keys
  }, panel, moves, slider, values, picture, spoken, element("p", { class: "notes" }, NOTES));

  slider.addEventListener("input", () => set({ launch: slider.valueAsNumber }));
  picture.addEventListener("click", () => slider.focus({ preventScroll: true }));  // for the keys
  root.addEventListener("keydown", (event) => {
    if (panel.contains(event.target)) return;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const launch = stepBy(chosen(), model.get("launch"), event.key);
    if (launch === null) return;
    event.preventDefault();
    event.stopPropagation();  // or a notebook takes the key for its own
    set({ launch });
  });

  let laid = 0;  // the width that it was drawn for
  function draw() {
    laid = values.clientWidth;
    // 0 while the page has not laid it out: then what a telephone has room for, at most.
    const width = laid || Math.min(640, document.documentElement.clientWidth - 64);
    const { height, shapes } = lifetimesChart(chosen(), model.get("launch"), width, hatch);
    picture.setAttribute("width", width);
    picture.setAttribute("height", height);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);  // on paper it shrinks
    picture.replaceChildren(hatching(hatch), ...shapes.map((shape) => drawing(...shape)));
  }

  function update() {
    const [flow, number] = [chosen(), model.get("launch")];
    const launch = flow.launches[number - 1];
    const { taken, wanted } = alive(flow, number);
    const { most } = peak(flow);
    control.value = model.get("chosen");
    slider.max = flow.launches.length;
    slider.value = number;
    slider.setAttribute("aria-valuetext", `launch ${number} of ${flow.launches.length}`);
    values.replaceChildren(
      figure("Launch", `${number} of ${flow.launches.length}`, launch.name),
      figure("Moves", bytes(launch.moved), "parameters with it"),
      figure("Memory taken", bytes(taken), `${bytes(wanted)} still wanted`),
      figure("At most", bytes(most), flow.label),
    );
    spoken.textContent = words(flow, number).join(" ");
    draw();
  }

  el.append(root);
  update();
  const watcher = new ResizeObserver(() => {
    if (values.clientWidth !== laid) draw();
  });
  watcher.observe(values);
  for (const key of ["chosen", "launch"]) model.on(`change:${key}`, update);
  return () => {
    watcher.disconnect();
    for (const key of ["chosen", "launch"]) model.off(`change:${key}`, update);
  };
}

export default { render };
