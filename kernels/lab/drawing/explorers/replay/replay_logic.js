// The logic of the replay, in functions without a page; replay.js follows in the same module. A
// recording comes as data, see trace.py: it knows no kernel.

const LAUNCH = 0, PROGRAM = 1, WARP = 2, TENSOR = 3, KIND = 4, LINE = 5, BYTES = 6, PLACE = 7;
const LOAD = 0;
const SIDES = [[0], [1], [0, 1]];  // an atomic reads and writes
const VERBS = ["loads", "stores", "adds atomically to"];

/** The elements that runs of [first, count, step] tell, in order. */
export function elementsOf(runs) {
  const elements = [];
  for (let at = 0; at < runs.length; at += 3) {
    for (let i = 0; i < runs[at + 1]; i += 1) elements.push(runs[at] + i * runs[at + 2]);
  }
  return elements;
}

/**
 * What has happened after `step` requests: of each tensor how many requests read and wrote each of
 * its elements, and the bytes, [read, written]. As in the ledger, `unique` counts what differs within
 * a launch, and `asked` every lane. `now` is the last request.
 */
export function played(recording, step) {
  const fresh = () => recording.tensors.map((tensor) => new Uint16Array(tensor.elements));
  const [reads, writes] = [fresh(), fresh()];
  const found = { reads, writes, asked: [0, 0], unique: [0, 0], now: null };
  let touched = [fresh(), fresh()];
  recording.requests.slice(0, step).forEach((request, index) => {
    if (index && request[LAUNCH] !== recording.requests[index - 1][LAUNCH]) touched = [fresh(), fresh()];
    const tensor = request[TENSOR];
    const elements = elementsOf(recording.places[request[PLACE]]);
    for (const side of SIDES[request[KIND]]) {
      const [counts, mine] = [[reads, writes][side][tensor], touched[side][tensor]];
      for (const element of elements) {
        counts[element] += 1;
        if (!mine[element]) found.unique[side] += recording.tensors[tensor].itemsize;
        mine[element] = 1;
      }
      found.asked[side] += request[BYTES];
    }
    found.now = { request, elements };
  });
  return found;
}

/** The steps at which a program begins, in order. */
export function beginnings(recording) {
  const steps = [];
  recording.requests.forEach((request, index) => {
    const before = recording.requests[index - 1];
    if (!before || before[LAUNCH] !== request[LAUNCH] || before[PROGRAM] !== request[PROGRAM]) {
      steps.push(index + 1);
    }
  });
  return steps;
}

/** The step that a key asks for, or null: `key` as the browser names it. */
export function stepBy(recording, step, key, shift) {
  const last = recording.requests.length;
  const begins = beginnings(recording);
  const program = begins.findLastIndex((begin) => begin <= step);
  const forward = key === "ArrowRight" || key === "ArrowUp" || key === "PageUp";
  const inside = (wanted) => Math.min(last, Math.max(1, wanted));
  if (key === "Home") return 1;
  if (key === "End") return last;
  if (!forward && !["ArrowLeft", "ArrowDown", "PageDown"].includes(key)) return null;
  if (key.startsWith("Arrow") && !shift) return inside(step + (forward ? 1 : -1));
  if (forward) return begins[program + 1] ?? last;
  return step > begins[program] ? begins[program] : begins[program - 1] ?? 1;
}

/** `3`, `0:64` or `0:64:2` for numbers that lie evenly; null for others. */
function sliced(numbers) {
  const [first] = numbers;
  if (numbers.length === 1) return String(first);
  const apart = numbers[1] - first;
  if (numbers.some((number, index) => number !== first + index * apart)) return null;
  const end = numbers.at(-1) + 1;
  return apart === 1 ? `${first}:${end}` : `${first}:${end}:${apart}`;
}

/** The elements of a tensor as code would write them: `x[3, 0:128]`. */
export function where(tensor, elements) {
  const some = `${elements.length} elements of ${tensor.name}`;
  if (tensor.rank === 1) {
    const part = sliced(elements);
    return part === null ? some : `${tensor.name}[${part}]`;
  }
  const lines = new Map();
  for (const element of elements) {
    const row = Math.floor(element / tensor.width);
    lines.set(row, [...(lines.get(row) ?? []), element % tensor.width]);
  }
  const columns = [...lines.values()];
  const parts = [sliced([...lines.keys()]), sliced(columns[0])];
  const even = columns.every((own) => own.join() === columns[0].join());
  return even && !parts.includes(null) ? `${tensor.name}[${parts.join(", ")}]` : some;
}

const ORDINALS = ["", "first", "second", "third"];

function ordinal(number) {
  if (ORDINALS[number]) return ORDINALS[number];
  const ends = { 1: "st", 2: "nd", 3: "rd" };
  const teen = number % 100 > 10 && number % 100 < 14;
  return `${number}${teen ? "th" : ends[number % 10] ?? "th"}`;
}

const times = (number) => ["never", "once", "twice"][number] ?? `${number} times`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const grouped = (number) => number.toLocaleString("en-US");
const bytes = (number) => `${grouped(number)} bytes`;

/** `program 3 of 16`, `block (1, 2) of 3 × 4`. */
function named(recording, request) {
  const what = recording.language === "Triton" ? "Program" : "Block";
  const grid = recording.launches[request[LAUNCH]].grid;
  const ranks = grid[2] > 1 ? 3 : grid[1] > 1 ? 2 : 1;
  const number = request[PROGRAM];
  const places = [number % grid[0], Math.floor(number / grid[0]) % grid[1],
    Math.floor(number / grid[0] / grid[1])];
  return ranks === 1 ? `${what} ${number} of ${grid[0]}`
    : `${what} (${places.slice(0, ranks).join(", ")}) of ${grid.slice(0, ranks).join(" × ")}`;
}

/** The last request as a sentence. */
export function sentence(recording, found) {
  const { request, elements } = found.now;
  const tensor = recording.tensors[request[TENSOR]];
  const said = [named(recording, request)];
  if (recording.launches.length > 1) {
    said[0] = `Launch ${request[LAUNCH] + 1}, ${recording.launches[request[LAUNCH]].name}: ` +
      said[0].toLowerCase();
  }
  if (request[WARP] >= 0) said.push(`warp ${request[WARP]}`);
  if (request[LINE] >= 0) said.push(`line ${request[LINE] + 1}`);
  const counts = (request[KIND] === LOAD ? found.reads : found.writes)[request[TENSOR]];
  const own = elements.map((element) => counts[element]);
  const [least, most] = [Math.min(...own), Math.max(...own)];
  const distinct = elements.length * tensor.itemsize;
  const asked = request[BYTES] === distinct ? bytes(distinct)
    : `${bytes(request[BYTES])}, ${grouped(distinct)} of them distinct`;
  const again = least === most ? ordinal(most) : `${ordinal(least)} to ${ordinal(most)}`;
  return `${said.join(", ")}: ${VERBS[request[KIND]]} ${where(tensor, elements)}, ${asked}, ` +
    `for the ${again} time.`;
}

/** Of each tensor that was touched, what was read and written of it so far, a sentence each. */
export function soFar(recording, found) {
  return recording.tensors.flatMap((tensor, index) => {
    const told = [[found.reads, "read"], [found.writes, "written"]].flatMap(([counts, verb]) => {
      const own = counts[index].filter((count) => count);
      if (!own.length) return [];
      const [least, most] = [own.reduce((a, b) => Math.min(a, b)), own.reduce((a, b) => Math.max(a, b))];
      const often = least === most ? times(most) : `${least} to ${most} times`;
      return [`${grouped(own.length)} ${verb}, each ${often}`];
    });
    return told.length ? [{ name: tensor.name, text: `${grouped(tensor.own)} elements: ${told.join("; ")}.` }] : [];
  });
}

/** Figures beside the picture, [name, value, how] each. */
export function figures(recording, found) {
  const { request } = found.now;
  const part = (sum(found.asked) / recording.ideal).toFixed(2);
  const many = recording.launches.length > 1
    ? `launch ${request[LAUNCH] + 1} of ${recording.launches.length}` : recording.language;
  return [
    [recording.language === "Triton" ? "Program" : "Block",
      named(recording, request).replace(/^\w+ /, ""), many],
    ["Distinct so far", bytes(sum(found.unique)), `ideal: ${bytes(recording.ideal)} in all`],
    ["Asked for so far", bytes(sum(found.asked)), `${part} times the ideal`],
    ["Reads and writes", bytes(found.asked[0]), `read, ${bytes(found.asked[1])} written`],
  ];
}

/** Rectangles of equal count, nothing where it is 0: {row, col, rows, cols, count} each. */
export function blocks(counts, width) {
  const done = [];
  let open = [];
  for (let row = 0; row * width < counts.length; row += 1) {
    const line = counts.slice(row * width, (row + 1) * width);
    const next = [];
    for (let col = 0; col < line.length;) {
      let end = col + 1;
      while (end < line.length && line[end] === line[col]) end += 1;
      if (line[col]) {
        const cols = end - col;
        const above = open.find((b) => b.col === col && b.cols === cols && b.count === line[col]);
        if (above) above.rows += 1;
        else done.push({ row, col, rows: 1, cols, count: line[col] });
        next.push(above ?? done.at(-1));
      }
      col = end;
    }
    open = next;
  }
  return done;
}

const LABEL = 20;  // px above a tensor
const GAP = 18;
const LETTER = 7.2;  // px, about, of a label

/** Where each tensor's grid lies if a cell is `side` px wide: side by side while there is room. */
function placed(tensors, side, width) {
  let [x, y, tall] = [0, 0, 0];
  const boxes = tensors.map((tensor) => {
    const rows = Math.ceil(tensor.elements / tensor.width);
    const down = rows <= 8 ? Math.max(14, side) : Math.max(4, side);
    const box = { cols: tensor.width, rows, side, down };
    const wide = Math.max(tensor.width * side, labelOf(tensor).length * LETTER);
    if (x && x + wide > width) [x, y, tall] = [0, y + tall + GAP, 0];
    Object.assign(box, { x, y: y + LABEL });
    x += wide + GAP;
    tall = Math.max(tall, LABEL + rows * down);
    return box;
  });
  return { boxes, height: y + tall };
}

const labelOf = (tensor) => `${tensor.name}, ${tensor.shape.join(" × ")} ${tensor.dtype}`;
const SHADES = [0, 0.3, 0.45, 0.6, 0.75];

/** The picture, `width` px wide: its height and its shapes, each [tag, attributes, text]. */
export function replayChart(recording, found, width, hatch) {
  const { tensors } = recording;
  const widest = Math.max(...tensors.map((tensor) => tensor.width));
  const sides = [12, 10, 8, 6, 5, 4, 3].filter((side) => side * widest <= width);
  const most = width < 480 ? 560 : 400;
  const tries = (sides.length ? sides : [width / widest]).map((side) => placed(tensors, side, width));
  const { boxes, height } = tries.find((one) => one.height <= most) ?? tries.at(-1);
  const top = 30;  // the legend's
  const shapes = [];
  const add = (tag, attributes, text = "") => shapes.push([tag, attributes, text]);
  const styles = { read: "", write: `fill:url(#${hatch})` };
  const cell = (kind, x, y, w, h, more = {}) => ["rect",
    { x, y, width: w, height: h, class: kind, style: styles[kind], ...more }, ""];

  const legend = [["read", "read"], ["write", "written"], ["now", "wanted by this request"]];
  let at = 1;
  for (const [kind, text] of legend) {
    shapes.push(cell(kind, at, 3, 14, 14, kind === "now" ? {} : { "fill-opacity": 0.75 }));
    add("text", { x: at + 20, y: 15 }, text);
    at += 34 + text.length * LETTER;
  }
  tensors.forEach((tensor, index) => {
    const box = boxes[index];
    const spot = (b) => [box.x + b.col * box.side, top + box.y + b.row * box.down,
      b.cols * box.side, b.rows * box.down];
    const full = Math.floor(tensor.elements / box.cols);
    const rest = tensor.elements - full * box.cols;
    add("text", { x: box.x, y: top + box.y - 6, class: "label" }, labelOf(tensor));
    if (full) add("rect", { ...rectangle(spot({ row: 0, col: 0, rows: full, cols: box.cols })), class: "tensor" });
    if (rest) add("rect", { ...rectangle(spot({ row: full, col: 0, rows: 1, cols: rest })), class: "tensor" });
    const here = found.now.request[TENSOR] === index;
    const wanted = new Uint16Array(tensor.elements);
    if (here) for (const element of found.now.elements) wanted[element] = 1;
    const labels = [];
    for (const [kind, counts] of [["read", found.reads[index]], ["write", found.writes[index]]]) {
      for (const block of blocks(counts, box.cols)) {
        const shade = { "fill-opacity": SHADES[Math.min(block.count, 4)] };
        shapes.push(cell(kind, ...spot(block), shade));
      }
      // The frame of what is wanted now would cut a number that stands for both sides of it.
      for (const inside of [0, 1]) {
        labels.push(...blocks(counts.map((count, i) => (wanted[i] === inside ? count : 0)), box.cols));
      }
    }
    if (here) {
      const kinds = SIDES[found.now.request[KIND]].map((side) => ["read", "write"][side]);
      for (const block of blocks(wanted, box.cols)) {
        shapes.push(...[...kinds, "now"].map((kind) => cell(kind, ...spot(block))));
      }
    }
    for (const block of labels.filter(({ count }) => count > 1)) {
      const [x, y, w, h] = spot(block);
      const text = `${block.count}×`;
      if (w >= text.length * 9 && h >= 13) {
        add("text", { x: x + w / 2, y: y + h / 2 + 4.5, "text-anchor": "middle", class: "times" }, text);
      }
    }
  });
  const below = top + height + GAP;
  shapes.push(...bars(recording, found, width, below, cell));
  return { height: below + 3 * BAR + 2, shapes };
}

const BAR = 18;  // px of a line with a bar

/** The bytes so far as bars under the ideal; a bar as long as all that will be asked for is full. */
function bars(recording, found, width, top, cell) {
  const left = 78;
  const all = sum(recording.requests.map((request) => SIDES[request[KIND]].length * request[BYTES]));
  const x = (amount) => left + (amount / Math.max(all, recording.ideal)) * (width - left - 2);
  const shapes = [];
  [["distinct", found.unique], ["asked for", found.asked]].forEach(([name, [read, written]], index) => {
    const y = top + (index + 1) * BAR;
    shapes.push(["text", { x: 0, y: y + 12 }, name]);
    if (read) shapes.push(cell("read", left, y, x(read) - left, BAR - 4));
    if (written) shapes.push(cell("write", x(read), y, x(read + written) - x(read), BAR - 4));
  });
  const ideal = x(recording.ideal);
  const late = ideal > width - 50;
  shapes.push(["line", { x1: ideal, x2: ideal, y1: top + 2, y2: top + 3 * BAR, class: "ideal" }, ""]);
  shapes.push(["text", { x: ideal + (late ? -5 : 5), y: top + 12, "text-anchor": late ? "end" : "start" }, "ideal"]);
  return shapes;
}

function rectangle([x, y, width, height]) {
  return { x, y, width, height };
}
