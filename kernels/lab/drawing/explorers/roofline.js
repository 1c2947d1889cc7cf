// The page of the roofline explorer: controls, chart and text. roofline_logic.js stands above it in
// the module, since a widget's module is one file without a neighbour to import.

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
  if (text && tag === "path") made.append(drawing("title", {}, text));
  else if (text) made.textContent = text;
  return made;
}

function select(text, options, choose) {
  const control = element("select");
  for (const [value, label] of options) control.append(element("option", { value }, label));
  control.addEventListener("change", () => choose(control.value));
  return { control, box: element("label", {}, element("span", {}, text), control) };
}

const NAMES = { rows: "Rows", cols: "Columns", m: "M", k: "K", n: "N" };

/** A size: a field for any whole number, and a slider over the powers of two. */
function sizeControl(name, largest, choose, complain) {
  const field = element("input", { type: "number", min: 1, max: largest, step: 1 });
  const slider = element("input", {
    type: "range", min: 0, max: Math.log2(largest), step: 1,
    "aria-label": `${NAMES[name]}, power of two`,
  });
  let kept = 1;
  // While a reader types, a half-written number is no mistake; leaving the field with one is.
  field.addEventListener("input", () => {
    const value = parseSize(field.value, largest);
    if (value !== null) choose(name, value);
  });
  field.addEventListener("change", () => {
    if (parseSize(field.value, largest) === null) {
      complain(`${NAMES[name]} takes a whole number from 1 to ${largest}; ${kept} is kept.`);
      field.value = kept;
    }
  });
  slider.addEventListener("input", () => choose(name, 2 ** slider.valueAsNumber));
  const show = (value) => {
    kept = value;
    if (parseSize(field.value, largest) !== value) field.value = value;
    slider.value = Math.round(Math.log2(value));
    slider.setAttribute("aria-valuetext", String(value));
  };
  const text = element("label", {}, element("span", {}, NAMES[name]), field);
  return { box: element("div", { class: "size" }, text, slider), show };
}

function tile(name, value, how) {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, element("strong", {}, value), element("small", {}, how)));
}

function tiles(p) {
  const elements = formula([...p.operation.read, ...p.operation.write]);
  const none = "not known";
  return [
    tile("Ideal bytes", quantity(p.bytes, "B"), `${p.itemsize} bytes · ${elements.includes("+") ? `(${elements})` : elements}`),
    tile("FLOPs", quantity(p.flops, "FLOP"), formula(p.operation.flops)),
    tile("Intensity", `${digits(p.intensity)} FLOP/byte`, p.ridge
      ? `ridge at ${digits(p.ridge)} FLOP/byte` : "ridge not known"),
    tile("At least", p.timeUs === null ? none : duration(p.timeUs), p.bound
      ? `${p.bound}-bound` : "bound not known"),
  ];
}

/** A line of text that ends in its sources, each with its address where it has one. */
function cited(text, found) {
  const line = element("p", {}, text);
  found.forEach((source, index) => {
    line.append(index ? "; " : " ",
      source.url ? element("a", { href: source.url }, source.text) : source.text);
  });
  line.append(".");
  return line;
}

function sources(p) {
  const { counted, source, url } = p.operation;
  const lines = [cited(`${counted} Source:`, [{ text: source, url }])];
  if (p.card) lines.push(cited(`Ceilings of ${p.card.name}, ${p.card.label}:`, p.card.sources));
  return lines;
}

function recordedList(p, looks) {
  const list = element("ul");
  p.rows.forEach((row, index) => {
    const picture = drawing("svg", { viewBox: "-9 -9 18 18", width: 18, height: 18,
      "aria-hidden": "true" });
    picture.append(drawing("path", { ...marker(row, looks), transform: "scale(13)",
      class: `point ${row.bytes_of}` }));
    list.append(element("li", {}, row.bytes ? picture : element("span"),
      element("span", {}, element("code", {}, row.variant), ` ${p.recorded[index]}`)));
  });
  return list;
}

const CHOICES = ["card", "op", "dtype", "sizes"];
const GIVEN = ["cards", "groups", "operations", "itemsizes", "looks", "largest_size"];

function render({ model, el }) {
  const read = () => Object.fromEntries([...CHOICES, ...GIVEN].map((key) => [key, model.get(key)]));
  const choose = (key, value) => {
    error.textContent = "";
    model.set(key, value);
    model.save_changes();
  };
  const given = read();
  const cards = given.cards.map((card) => [card.key, `${card.name}, ${card.label}`]);
  const card = select("Card", cards, (value) => choose("card", value));
  const operations = given.operations.map((operation) => [operation.key, operation.label]);
  const op = select("Operation", operations, (value) => choose("op", value));
  const dtypes = Object.keys(given.itemsizes).map((name) => [name, name]);
  const dtype = select("Dtype", dtypes, (value) => choose("dtype", value));
  const names = [...new Set(given.operations.flatMap((operation) => operation.sizes))];
  const sizes = Object.fromEntries(names.map((name) => [name, sizeControl(
    name, given.largest_size,
    (which, value) => choose("sizes", { ...model.get("sizes"), [which]: value }),
    (sentence) => { error.textContent = sentence; },
  )]));
  const controls = element("div", { class: "controls" }, card.box, op.box, dtype.box,
    element("div", { class: "sizes" }, ...names.map((name) => sizes[name].box)));
  const error = element("p", { class: "error", role: "alert" });
  const figures = element("dl");
  const picture = drawing("svg", {
    role: "img", "aria-label": "Roofline chart; the text below says what it shows",
  });
  const spoken = element("div", { class: "text", "aria-live": "polite" });
  const notes = element("div", { class: "notes" });
  const root = element("div", {
    class: "fk-explorer", role: "group", "aria-label": "Roofline explorer",
  }, controls, error, figures, picture, spoken, notes);

  let laid = 0;  // the width that it was drawn for
  function draw() {
    const state = read();
    const p = predict(state);
    laid = figures.clientWidth;
    const width = laid || 640;  // 0 while the page has not laid it out
    const { height, shapes } = chart(p, state.looks, width);
    picture.toggleAttribute("hidden", shapes.length === 0);
    picture.setAttribute("width", width);
    picture.setAttribute("height", height);
    picture.replaceChildren(...shapes.map((shape) => drawing(...shape)));
    return { state, p };
  }

  function update() {
    const { state, p } = draw();
    // A card that the data does not know stands in the list too, so that the list tells no lie.
    if (p.card === null && state.card && !cards.some(([key]) => key === state.card)) {
      cards.push([state.card, `${state.card}, unknown`]);
      card.control.append(element("option", { value: state.card }, `${state.card}, unknown`));
    }
    card.control.value = p.card?.key ?? state.card;
    op.control.value = state.op;
    dtype.control.value = state.dtype;
    for (const name of names) {
      sizes[name].box.hidden = !p.operation.sizes.includes(name);
      sizes[name].show(state.sizes[name]);
    }
    figures.replaceChildren(...tiles(p));
    spoken.replaceChildren(element("p", {}, p.summary.join(" ")),
      element("p", {}, p.recordedTitle), recordedList(p, state.looks));
    notes.replaceChildren(...sources(p));
  }

  el.append(root);
  update();
  const watcher = new ResizeObserver(() => {
    if (figures.clientWidth !== laid) draw();
  });
  watcher.observe(figures);
  for (const key of CHOICES) model.on(`change:${key}`, update);
  return () => {
    watcher.disconnect();
    for (const key of CHOICES) model.off(`change:${key}`, update);
  };
}

export default { render };
