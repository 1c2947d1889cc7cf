// The page of the sector explorer: controls, map and text. sectors_logic.js stands above it in the
// module, since a widget's module is one file without a neighbour to import.

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

/** A slider over whole numbers from 0 to `most`, its value in its label. */
function slider(text, most, choose) {
  const control = element("input", { type: "range", min: 0, max: most, step: 1 });
  const value = element("b");  // no output: the label would be its, not the slider’s
  control.addEventListener("input", () => choose(control.valueAsNumber));
  const show = (number) => {
    control.value = number;
    value.textContent = ` ${number}`;
  };
  return { box: element("label", {}, element("span", {}, text, value), control), show };
}

function select(text, options, choose) {
  const control = element("select");
  for (const [value, label] of options) control.append(element("option", { value }, label));
  control.addEventListener("change", () => choose(Number(control.value)));
  const box = element("label", {}, element("span", {}, text), control);
  return { box, show: (value) => { control.value = value; } };
}

function tile(name, value, how) {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, element("strong", {}, value), element("small", {}, how)));
}

const CHOICES = ["width", "stride", "offset"];

function render({ model, el }) {
  const read = () => Object.fromEntries(CHOICES.map((key) => [key, model.get(key)]));
  const choose = (key) => (value) => {
    model.set(key, value);
    model.save_changes();
  };
  const widths = model.get("widths").map((bytes) => [bytes, `${bytes} byte${bytes > 1 ? "s" : ""}`]);
  const controls = {
    width: select("Width of a lane’s load", widths, choose("width")),
    stride: slider("Stride, in loads:", model.get("largest_stride"), choose("stride")),
    offset: slider("First lane’s place, in loads:", model.get("largest_offset"), choose("offset")),
  };
  const panel = element("div", { class: "controls" },
    ...CHOICES.map((key) => controls[key].box));
  const figures = element("dl");
  const picture = drawing("svg", {
    role: "img", "aria-label": "Map of the cache lines touched; the text below says what it shows",
  });
  const spoken = element("p", { class: "text", "aria-live": "polite" });
  const note = element("p", { class: "notes" },
    "A row is a cache line of 128 bytes, named by its first byte. Blue: bytes that a lane wants, " +
    "in two shades for lanes in turn. Grey: bytes that come along in a sector.");
  const root = element("div", {
    class: "fk-explorer fk-sectors", role: "group", "aria-label": "Sector explorer",
  }, panel, figures, picture, spoken, note);

  let laid = 0;  // the width that it was drawn for
  function draw() {
    const found = request(read());
    laid = figures.clientWidth;
    const width = laid || 640;  // 0 while the page has not laid it out
    const { height, shapes } = sectorChart(found, width);
    picture.setAttribute("width", width);
    picture.setAttribute("height", height);
    picture.replaceChildren(...shapes.map((shape) => drawing(...shape)));
    return found;
  }

  function update() {
    const found = draw();
    for (const key of CHOICES) controls[key].show(model.get(key));
    figures.replaceChildren(
      tile("Sectors", String(found.sectors), `at least ${found.fewest}`),
      tile("Bytes asked for", String(found.asked), `${found.wanted} of them differ`),
      tile("Bytes fetched", String(found.fetched), "sectors × 32"),
      tile("Wanted", `${Math.round(100 * found.share)} %`, "of what is fetched"));
    spoken.textContent = words(read(), found).join(" ");
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
