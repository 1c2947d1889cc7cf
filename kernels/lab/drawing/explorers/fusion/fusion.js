// The page of the fusion explorer: controls, figures, bars, and the list of steps with a joint
// between each two. fusion_logic.js stands above it in the module, since a widget's module is one
// file without a neighbour to import.

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

function select(text, options, choose) {
  const control = element("select");
  for (const [value, label] of options) control.append(element("option", { value }, label));
  control.addEventListener("change", () => choose(control.value));
  return { control, box: element("label", {}, element("span", {}, text), control) };
}

const LABELS = { cols: "Columns", rows: "Rows", batch: "Batch", length: "Length" };
const MOST = 20;  // the largest power of two that a slider offers

/** A slider over powers of two; a size between two of them stands where the nearer one is. */
function slider(name, choose) {
  const control = element("input", { type: "range", min: 0, max: MOST, step: 1 });
  const value = element("b");  // no output: the label would be its, not the slider’s
  control.addEventListener("input", () => choose(2 ** control.valueAsNumber));
  const show = (size) => {
    control.value = Math.round(Math.log2(size));
    control.setAttribute("aria-valuetext", size);
    value.textContent = ` ${size}`;
  };
  const text = element("span", {}, `${LABELS[name]}:`, value);
  return { box: element("label", {}, text, control), show };
}

function tile(name, value, how) {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, element("strong", {}, value), element("small", {}, how)));
}

function figuresOf({ now, open }) {
  return [
    tile("Launches", String(now.launches.length), `${open.launches.length} with all open`),
    tile("Bytes moved", bytes(now.moved), `${bytes(open.moved)} with all open`),
    tile("Memory", bytes(now.memory), `at once, in launch ${now.fullest + 1}; ` +
      `${bytes(open.memory)} with all open`),
    tile("At least", now.timeUs === null ? "not known" : duration(now.timeUs),
      now.timeUs === null ? "a figure of the card is missing"
        : `${duration(open.timeUs)} with all open`),
  ];
}

/** A text in which no line breaks between a number and its unit. */
const tied = (text) => text.replace(/(\d) (?=[kMGTPnµm]?[Bs]\b)/g, "$1\u00a0");

/** A launch beside its first step. */
function launchOf(one, number) {
  const short = one.timeUs < 1e-3 ? "less than 1 ns" : duration(one.timeUs ?? 0);
  const time = one.timeUs === null ? "" : `, ${short} ${one.bound}-bound`;
  return [element("b", {}, `Launch ${number + 1}`),
    tied(` ${bytes(one.read + one.write)}${time}; ${bytes(one.alive)} alive`)];
}

/** The rows of a chain’s steps and joints, made once a chain, so that a joint keeps the focus. */
function rowsOf(chain, flip) {
  const steps = chain.steps.map((step) => {
    const launch = element("span", { class: "launch" });
    const tensors = `${step.reads.join(", ") || "–"} → ${step.writes.join(", ")}`;
    const row = element("li", { class: "step" }, element("span", { class: "what" },
      element("b", {}, step.name), " ", element("span", { class: "tensors" }, tensors)), launch);
    return { row, launch };
  });
  const joints = chain.steps.slice(1).map((after, joint) => {
    const button = element("button", { type: "button" });
    button.addEventListener("click", () => flip(joint));
    const text = element("span", { class: "words" });
    return { row: element("li", { class: "joint" }, button, text), button, text, after };
  });
  return { steps, joints,
    rows: steps.flatMap(({ row }, at) => (at < joints.length ? [row, joints[at].row] : [row])) };
}

function showRows(rows, found) {
  const starts = new Map(found.now.launches.map((one, number) => [one.steps[0], [one, number]]));
  const ends = new Set(found.now.launches.map((one) => one.steps.at(-1)));
  rows.steps.forEach(({ row, launch }, at) => {
    row.classList.toggle("first", starts.has(at));
    row.classList.toggle("last", ends.has(at));
    launch.replaceChildren(...(starts.has(at) ? launchOf(...starts.get(at)) : []));
  });
  rows.joints.forEach(({ row, button, text, after }, at) => {
    const one = found.joints[at];
    const names = `${found.chain.steps[at].name} and ${after.name}`;
    row.classList.toggle("closed", one.shut);
    row.classList.toggle("barred", Boolean(one.why));
    button.disabled = Boolean(one.why);
    button.textContent = one.why ? "stays open" : one.shut ? "open" : "close";
    button.setAttribute("aria-label", one.why ? `Stays open: ${names}`
      : `${one.shut ? "Open" : "Close"} the joint between ${names}`);
    if (one.why) {
      text.replaceChildren(one.why);
      return;
    }
    const gain = element("b", {}, tied(`${one.shut ? "saves" : "closing saves"} ${savings(one)}`));
    const takes = after.takes && element("small", {}, after.takes);
    text.replaceChildren(`${one.words}: `, gain, ...(takes ? [". ", takes] : []));
  });
}

function sources({ card }) {
  const line = element("p", {}, "Time is, launch by launch, the larger of bytes over bandwidth and " +
    "FLOPs over the peak; it is a least time, and no measurement. ");
  if (!card) return [line];
  line.append(`A launch by itself, ${duration(card.launch_us)}: python -m kernels.lab bench ` +
    `ceilings on ${card.launch_of}` +
    `${card.launch_of === card.name ? "" : ", since none is recorded on this card"}. Ceilings of ` +
    `${card.name}, ${card.label} (memory ${bytes(card.bandwidth)}/s):`);
  card.sources.forEach((source, index) => {
    line.append(index ? "; " : " ",
      source.url ? element("a", { href: source.url }, source.text) : source.text);
  });
  line.append(".");
  return [line];
}

const matches = ({ chains, chain, closed }) =>
  closed.length === chains.find((one) => one.key === chain).steps.length - 1;

const BARS = "Bars: plain blue waits for bytes, striped orange for arithmetic, grey is the launch " +
  "itself; numbers are launches. A framed box of steps is a launch.";
const LAUNCHED = [["graph", "as a graph"], ["host", "from Python"]];
const CHOICES = ["chain", "sizes", "closed", "card", "launched"];
const GIVEN = ["chains", "cards", "names", "dtype"];
let stripes = 0;

function render({ model, el }) {
  const read = () => Object.fromEntries([...CHOICES, ...GIVEN].map((key) => [key, model.get(key)]));
  const set = (changes) => {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  };
  const chains = model.get("chains");
  const presets = chains.flatMap((chain) => chain.presets.map(
    (preset) => ({ ...preset, chain: chain.key })));
  const OWN = "own";
  const preset = select("Start from",
    [...presets.map((one, at) => [String(at), one.label]), [OWN, "a choice of your own"]],
    (value) => {
      if (value === OWN) return update();
      const chosen = presets[Number(value)];
      event = "";
      settle(() => set({ chain: chosen.chain, closed: chosen.closed }));
      return undefined;
    });
  const cards = model.get("cards").map((one) => [one.key, `${one.name}, ${one.label}`]);
  const card = select("Card", cards, (value) => { event = ""; set({ card: value }); });
  const launched = select("Launched", LAUNCHED, (value) => { event = ""; set({ launched: value }); });
  const sliders = Object.fromEntries(model.get("slides").map((name) => [name, slider(name,
    (size) => { event = ""; set({ sizes: { ...model.get("sizes"), [name]: size } }); })]));
  const panel = element("div", { class: "controls" }, preset.box, card.box, launched.box,
    ...Object.values(sliders).map((one) => one.box));
  const figures = element("dl");
  const stripe = `fk-striped-${stripes += 1}`;
  const picture = drawing("svg", {
    role: "img", "aria-label": "Least times as bars; the text below says what they show",
  });
  const list = element("ol", { "aria-label": "Steps and the joints between them" });
  const happened = element("p", { class: "event" });
  const spoken = element("p");
  const text = element("div", { class: "text", "aria-live": "polite" }, happened, spoken);
  const notes = element("div", { class: "notes" });
  const root = element("div", {
    class: "fk-explorer fk-fusion", role: "group", "aria-label": "Fusion explorer",
  }, panel, figures, picture, element("p", { class: "notes" }, BARS), list, text, notes);

  let event = "";  // what the last change of a joint did
  let shown = null;  // the chain whose rows stand in the list
  let rows = null;
  let waiting = false;

  /** Make several changes, and show them once. */
  function settle(change) {
    waiting = true;
    change();
    waiting = false;
    update();
  }

  function flip(joint) {
    const before = reckon(read());
    const closed = before.closed.map((shut, at) => (at === joint ? !shut : shut));
    event = changed(before.chain, joint, closed[joint], before);
    set({ closed });
  }

  let laid = 0;  // the width that it was drawn for
  function draw(found) {
    laid = figures.clientWidth;
    const width = laid || 640;  // 0 while the page has not laid it out
    const { height, shapes } = timeChart(found, width);
    picture.toggleAttribute("hidden", shapes.length === 0);
    picture.setAttribute("width", width);
    picture.setAttribute("height", height);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);  // on paper it shrinks
    const pattern = drawing("pattern", { id: stripe, width: 6, height: 6,
      patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    pattern.append(drawing("rect", { width: 6, height: 6, class: "compute-ground" }),
      drawing("rect", { width: 2, height: 6, class: "compute-line" }));
    picture.replaceChildren(pattern, ...shapes.map((shape) => drawing(...shape)));
    for (const bar of picture.querySelectorAll(".compute")) bar.style.fill = `url(#${stripe})`;
  }

  function update() {
    const state = read();
    // Between two changes the joints may be another chain’s.
    if (waiting || !matches(state)) return;
    const found = reckon(state);
    if (shown !== state.chain) {
      rows = rowsOf(found.chain, flip);
      list.replaceChildren(...rows.rows);
      shown = state.chain;
    }
    const same = (one) => one.chain === state.chain &&
      one.closed.every((shut, joint) => shut === state.closed[joint]);
    const chosen = presets.findIndex(same);
    preset.control.value = chosen < 0 ? OWN : String(chosen);
    // A card that the data does not know stands in the list too, so that the list tells no lie.
    if (found.card === null && state.card && !cards.some(([key]) => key === state.card)) {
      cards.push([state.card, `${state.card}, unknown`]);
      card.control.append(element("option", { value: state.card }, `${state.card}, unknown`));
    }
    card.control.value = found.card?.key ?? state.card;
    launched.control.value = state.launched;
    for (const [name, one] of Object.entries(sliders)) one.show(state.sizes[name]);
    figures.replaceChildren(...figuresOf(found));
    showRows(rows, found);
    happened.textContent = event;
    happened.hidden = !event;
    spoken.textContent = words(state, found).join(" ");
    notes.replaceChildren(...sources(found));
    draw(found);
  }

  el.append(root);
  update();
  const watcher = new ResizeObserver(() => {
    if (figures.clientWidth !== laid && matches(read())) draw(reckon(read()));
  });
  watcher.observe(figures);
  for (const key of CHOICES) model.on(`change:${key}`, update);
  return () => {
    watcher.disconnect();
    for (const key of CHOICES) model.off(`change:${key}`, update);
  };
}

export default { render };
