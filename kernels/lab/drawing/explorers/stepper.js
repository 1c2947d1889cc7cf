// The page of the attention stepper: controls, numbers, map and text. stepper_logic.js stands above
// it in the module, since a widget's module is one file without a neighbour to import.

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

/** Slanted lines, so that what is skipped is not told by its colour alone. */
function hatching(id) {
  const pattern = drawing("pattern", { id, width: 5, height: 5, patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)" });
  pattern.append(drawing("rect", { width: 1.6, height: 5, class: "hatch-line" }));
  return pattern;
}

function select(text, options, choose) {
  const control = element("select");
  for (const [value, label] of options) control.append(element("option", { value }, label));
  control.addEventListener("change", () => choose(Number(control.value)));
  return { control, box: element("label", {}, element("span", {}, text), control) };
}

function figure([name, value, how]) {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, element("strong", {}, value), element("small", {}, how)));
}

/**
 * A table of numbers, a line a query. Each column is [heading, numbers, numbers before or null];
 * what differs from before is framed, and what it was stands below it. `look` is the table’s class.
 */
function numbers(caption, rows, columns, look = "") {
  const was = columns.some(([, , before]) => before !== undefined);
  const head = element("tr", {}, element("th", { scope: "col" }, "q"),
    ...columns.map(([heading]) => element("th", { scope: "col" }, heading)));
  const body = rows.map((row, i) => {
    const line = element("tr", {}, element("th", { scope: "row" }, String(row)));
    for (const [, own, before] of columns) {
      const changed = Boolean(before) && before[i] !== own[i];
      const cell = element("td", changed ? { class: "changed" } : {}, own ? shown(own[i]) : "–");
      // The second line is there always, so that the page does not jump.
      if (was) cell.append(element("small", {}, changed ? `was ${shown(before[i])}` : "\u00a0"));
      line.append(cell);
    }
    return line;
  });
  return element("table", { class: look }, element("caption", {}, caption), element("thead", {}, head),
    element("tbody", {}, ...body));
}

function tables(choice, step) {
  const { rows, tiles } = planned(choice, choice.tile);
  const { keys } = tiles[step.at ?? 0];
  const heading = (j) => step.at === null ? "–" : String(keys[j]);
  const square = (of) => keys.map((_, j) => [heading(j), of && of.map((line) => line[j])]);
  const column = (of, d) => of.map((line) => line[d]);
  const last = step.kind === "end";
  const changes = (kind) => step.kind === kind;
  const state = [
    ["m", step.m, changes("maximum") ? step.before.m : null],
    last ? ["L", step.lse, null] : ["c", step.correction, null],
    ["l", step.s, changes("sum") ? step.before.s : null],
    ...choice.q[0].map((_, d) => [`${last ? "O" : "acc"} ${d}`, column(step.acc, d),
      changes("output") || last ? column(step.before.acc, d) : null]),
  ];
  return [numbers("S = q · kᵀ / √d", rows, square(step.scores), step.weights ? "past" : ""),
    numbers("P = e^(S − m)", rows, square(step.weights)),
    numbers(last ? "O = acc / l and L = m + log l" : "State of each query", rows, state)];
}

function figures(choice, steps, number) {
  const step = steps[number - 1];
  const { tiles, met } = planned(choice, choice.tile);
  const { q, k, v } = step.read;
  const whole = steps.at(-1).read;
  const head = headOf(choice);
  const skipped = tiles.length - met;
  return [
    ["Step", `${number} of ${steps.length}`, step.at === null ? "outside of the loop over keys"
      : `keys ${span(tiles[step.at].keys)}, tile ${step.at + 1} of ${met}`],
    ["Read so far", bytes(q + k + v), `q ${q}, k ${k}, v ${v}`],
    ["This tile reads", bytes(whole.q + whole.k + whole.v),
      `in ${met} of ${tiles.length} tiles of keys${skipped ? `; ${skipped} skipped` : ""}`],
    [`All ${head.tiles} tiles read`, bytes(head.read), `must read ${head.least} at least`],
  ];
}

function places(choice, step) {
  const { registers, shared } = held(choice, step);
  const named = (of) => of.length
    ? of.map(([name, size]) => `${name} ${size}`).join(", ") +
      `: ${bytes(of.reduce((total, [, size]) => total + size, 0))}`
    : "nothing that is still wanted";
  return [["Registers", named(registers)], ["Shared memory", named(shared)],
    ["Never in memory", `S and P, ${bytes(headOf(choice).scores)} each if they were`]];
}

const NOTES = "Keys: arrows step; with Shift, or Page Up and Page Down, by a tile of keys; Home and " +
  "End go to the ends. Queries, keys and the numbers of a query count from 0. q, k, v and O have 2 " +
  "bytes a number, S, P, m, l and acc 4. The map holds all scores: filled, made so far; framed, now; " +
  "hatched, skipped; empty in a tile that is made, later than its query. A real tile is larger. " +
  "The kernel takes 2^x where this page takes e^x, of scores times log₂ e: the same weights.";

let hatches = 0;

function render({ model, el }) {
  const names = ["causal", "tile", "block_m", "block_n", "step"];
  const sizes = model.get("blocks").map((size) => [size, String(size)]);
  const choice = () => Object.fromEntries(
    ["q", "k", "v", "causal", "tile", "block_m", "block_n"].map((key) => [key, model.get(key)]));
  const steps = () => walk(choice());
  const set = (changes) => {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  };
  // The step and the tile that a change makes void go first: no state between has a wrong one.
  const begin = (changes) => set({ step: 1, ...changes });
  const tile = select("Tile of queries", [], (value) => begin({ tile: value }));
  const blockM = select("Queries in a tile", sizes, (value) => begin({ tile: 0, block_m: value }));
  const blockN = select("Keys in a tile", sizes, (value) => begin({ block_n: value }));
  const causal = element("input", { type: "checkbox" });
  causal.addEventListener("change", () => begin({ causal: causal.checked }));
  const panel = element("div", { class: "controls" }, tile.box,
    element("label", { class: "check" }, causal, " Causal"), blockM.box, blockN.box);
  const slider = element("input", { type: "range", min: 1, step: 1, "aria-label": "Step" });
  const move = (key) => set({ step: stepBy(steps(), model.get("step"), key, false) });
  const button = (label, key, ...text) => {
    const made = element("button", { type: "button", "aria-label": label, title: label }, ...text);
    made.addEventListener("click", () => move(key));
    return made;
  };
  const moves = element("div", { class: "moves" },
    button("Previous tile of keys", "PageDown", "« tile"),
    button("Previous step", "ArrowLeft", "‹ step"),
    button("Next step", "ArrowRight", "step ›"),
    button("Next tile of keys", "PageUp", "tile »"));
  const spoken = element("p", { class: "text", "aria-live": "polite" });
  const grids = element("div", { class: "grids" });
  const hatch = `fk-skipped-${hatches += 1}`;
  const map = drawing("svg", {
    role: "img", "aria-label": "Map of all scores; the text says what it shows",
  });
  const values = element("dl");
  const list = element("ul", { "aria-label": "What is where" });
  const beside = element("div", { class: "beside" }, values, list);
  const view = element("div", { class: "view" }, map, beside);
  const root = element("div", {
    class: "fk-explorer fk-stepper", role: "group", "aria-label": "Attention, step by step",
    "data-lm-suppress-shortcuts": "true",  // JupyterLab's own, which would take the keys
  }, panel, moves, slider, spoken, grids, view, element("p", { class: "notes" }, NOTES));

  slider.addEventListener("input", () => set({ step: slider.valueAsNumber }));
  for (const part of [grids, map]) {
    part.addEventListener("click", () => slider.focus({ preventScroll: true }));  // for the keys
  }
  root.addEventListener("keydown", (event) => {
    if (panel.contains(event.target)) return;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const step = stepBy(steps(), model.get("step"), event.key, event.shiftKey);
    if (step === null) return;
    event.preventDefault();
    event.stopPropagation();  // or a notebook takes the key for its own
    set({ step });
  });

  let laid = 0;  // the width that it was drawn for
  function draw(found, number) {
    laid = root.clientWidth;
    const width = Math.min(values.clientWidth || 304, 304);  // 0 while it is not laid out
    const picture = stepperChart(choice(), found, number, width, hatch);
    map.setAttribute("width", picture.width);
    map.setAttribute("height", picture.height);
    map.setAttribute("viewBox", `0 0 ${picture.width} ${picture.height}`);  // on paper it shrinks
    map.replaceChildren(hatching(hatch), ...picture.shapes.map((shape) => drawing(...shape)));
  }

  function update() {
    const [own, found] = [choice(), steps()];
    const number = Math.min(model.get("step"), found.length);
    const step = found[number - 1];
    const { tiles } = headOf(own);
    tile.control.replaceChildren(...Array.from({ length: tiles }, (_, at) => element("option",
      { value: at }, `${span(planned(own, at).rows)} (${at + 1} of ${tiles})`)));
    tile.control.value = own.tile;
    blockM.control.value = own.block_m;
    blockN.control.value = own.block_n;
    causal.checked = own.causal;
    slider.max = found.length;
    slider.value = number;
    slider.setAttribute("aria-valuetext", `step ${number} of ${found.length}`);
    spoken.textContent = words(own, found, number).join(" ");
    grids.replaceChildren(...tables(own, step));
    values.replaceChildren(...figures(own, found, number).map(figure));
    list.replaceChildren(...places(own, step).map(([name, text]) =>
      element("li", {}, element("b", {}, name), `: ${text}.`)));
    draw(found, number);
  }

  el.append(root);
  update();
  const watcher = new ResizeObserver(() => {
    if (root.clientWidth !== laid) draw(steps(), model.get("step"));
  });
  watcher.observe(root);
  for (const key of names) model.on(`change:${key}`, update);
  return () => {
    watcher.disconnect();
    for (const key of names) model.off(`change:${key}`, update);
  };
}

export default { render };
