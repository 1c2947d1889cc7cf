// The page of the tiler: controls, figures, map and text. tiler_logic.js stands above it in the
// module, since a widget's module is one file without a neighbour to import.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawing(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** A slider over a list of values, the chosen one in its label. */
function slider(text, values, choose) {
  const control = element("input", { type: "range", min: 0, max: values.length - 1, step: 1 });
  const value = element("b");  // no output: the label would be its, not the slider’s
  control.addEventListener("input", () => choose(values[control.valueAsNumber]));
  const show = (chosen) => {
    control.value = values.indexOf(chosen);
    control.setAttribute("aria-valuetext", chosen);
    value.textContent = ` ${chosen}`;
  };
  return { box: element("label", {}, element("span", {}, text, value), control), show };
}

function select(text, options, choose) {
  const control = element("select");
  for (const [value, label] of options) control.append(element("option", { value }, label));
  control.addEventListener("change", () => choose(control.value));
  const box = element("label", {}, element("span", {}, text), control);
  return { box, show: (value) => { control.value = value; } };
}

function tile(name, value, how) {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, element("strong", {}, value), element("small", {}, how)));
}

function figuresOf(found, card) {
  const { first } = found.distinct;
  const percent = (share) => `${Math.round(100 * share)} %`;
  return [
    tile("Asked for", bytes(found.askedX + found.askedWeight),
      `${bytes(found.askedX)} of x, ${bytes(found.askedWeight)} of the weight`),
    tile("FLOP/byte", digits(found.intensity), "of what is asked for"),
    tile("A wave touches", `${first.m} + ${first.n}`, "blocks of x, of the weight"),
    tile("All waves", bytes(found.fromDram), `must move ${bytes(found.mustMove)}`),
    tile("Programs", String(found.programs),
      `${found.waves} × ${card.sms}, ${percent(found.used)} of it wanted`),
    tile("Sums", percent(found.registers), "of all registers"),
    tile("Shared memory", bytes(found.shared), `of ${bytes(card.shared)}`),
    found.fits ? tile("At least", duration(found.timeUs), `${found.bound}-bound`)
      : tile("At least", "–", "does not fit"),
  ];
}

const LABELS = { m: "Rows of x, M:", k: "Depth of the sum, K:", n: "Columns of y, N:",
  block_m: "Tile, rows:", block_n: "Tile, columns:", block_k: "Step along K:",
  group: "Rows of tiles in a group:", stages: "Stages:" };

function render({ model, el }) {
  const names = Object.keys(LABELS);
  const cards = model.get("cards");
  const values = model.get("values");
  const read = () => Object.fromEntries(names.map((key) => [key, model.get(key)]));
  const choose = (key) => (value) => {
    model.set(key, value);
    model.save_changes();
  };
  const told = cards.map((one) => [one.key, `${one.name}, ${one.label}`]);
  const controls = Object.fromEntries(names.map(
    (key) => [key, slider(LABELS[key], values[key], choose(key))]));
  controls.card = select("Card", told, choose("card"));
  const panel = element("div", { class: "controls" }, controls.card.box,
    ...names.map((key) => controls[key].box));
  const figures = element("dl");
  const picture = drawing("svg", {
    role: "img", "aria-label": "Map of the tiles of y; the text below says what it shows",
  });
  const spoken = element("p", { class: "text", "aria-live": "polite" });
  const notes = element("p", { class: "notes" },
    "The box is y. Blue: the tiles of the first wave, one on each multiprocessor. Orange: the " +
    "blocks of rows of x, at the left, and of the weight, on top, that they touch. Numbers have " +
    "2 bytes, sums 4. Time is the larger of two: all that is started over the peak, and what " +
    "the waves touch over the bandwidth, if nothing lasts in the L2 from one to the next.");
  const root = element("div", {
    class: "fk-explorer fk-tiler", role: "group", "aria-label": "Tiler",
  }, panel, figures, picture, spoken, notes);
  const cardNow = () => cards.find((one) => one.key === model.get("card")) ?? cards[0];

  let laid = 0;  // the width that it was drawn for
  function draw() {
    const found = reckon(read(), cardNow());
    laid = figures.clientWidth;
    const width = laid || 640;  // 0 while the page has not laid it out
    const { height, shapes } = tilerChart(found, width);
    picture.setAttribute("width", width);
    picture.setAttribute("height", height);
    picture.replaceChildren(...shapes.map((shape) => drawing(...shape)));
    return found;
  }

  function update() {
    const found = draw();
    for (const key of names) controls[key].show(model.get(key));
    controls.card.show(cardNow().key);
    figures.replaceChildren(...figuresOf(found, cardNow()));
    spoken.textContent = words(read(), cardNow(), found).join(" ");
  }

  el.append(root);
  update();
  const watcher = new ResizeObserver(() => {
    if (figures.clientWidth !== laid) draw();
  });
  watcher.observe(figures);
  for (const key of [...names, "card"]) model.on(`change:${key}`, update);
  return () => {
    watcher.disconnect();
    for (const key of [...names, "card"]) model.off(`change:${key}`, update);
  };
}

export default { render };
