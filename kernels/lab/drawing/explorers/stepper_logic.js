// The logic of the attention stepper, in functions without a page; stepper.js follows in the same
// module. It computes from q, k and v, one head of (length, d), what attention_simple computes, with
// e^x for its 2^x; a test holds states and bytes to Python’s and to the kernel’s own ledger.

const ITEM = 2;  // bytes of a number of fp16 or bf16, as q, k, v and o are held
const SUM = 4;  // and of one of the state, a register

const range = (first, end) => Array.from({ length: Math.max(0, end - first) }, (_, i) => first + i);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const dot = (a, b) => sum(a.map((x, i) => x * b[i]));

/** The queries of tile `tile`, and the tiles of keys: those that it meets, and those it skips. */
export function planned({ q, causal, block_m, block_n }, tile) {
  const length = q.length;
  const rows = range(tile * block_m, Math.min((tile + 1) * block_m, length));
  const stop = causal ? rows.at(-1) + 1 : length;
  const tiles = range(0, Math.ceil(length / block_n)).map((index) => {
    const keys = range(index * block_n, Math.min((index + 1) * block_n, length));
    return { keys, skipped: keys[0] >= stop };
  });
  return { rows, tiles, met: tiles.filter((one) => !one.skipped).length };
}

/**
 * Every step of the chosen tile of queries, from its load to its store.
 *
 * A step has its `kind`, the number of its tile of keys (null before and after the loop), the state
 * m, s, acc after it, what it made, the state `before` it, and the bytes asked for so far.
 */
export function walk(choice) {
  const { q, k, v, causal } = choice;
  const { rows, tiles } = planned(choice, choice.tile);
  const dims = q[0].length;
  const scale = dims ** -0.5;
  const now = {
    at: null, scores: null, weights: null, correction: null,
    m: rows.map(() => -Infinity), s: rows.map(() => 0), acc: rows.map(() => Array(dims).fill(0)),
    read: { q: rows.length * dims * ITEM, k: 0, v: 0 }, written: 0, lse: null,
  };
  const steps = [];
  const told = (kind, change) => {
    const before = { m: now.m, s: now.s, acc: now.acc };
    Object.assign(now, change);
    steps.push({ ...now, kind, before, read: { ...now.read } });
  };
  told("begin", {});
  tiles.forEach(({ keys, skipped }, at) => {
    if (skipped) return;
    now.read.k += keys.length * dims * ITEM;
    const scores = rows.map((row) => keys.map((key) =>
      causal && key > row ? -Infinity : dot(q[row], k[key]) * scale));
    told("scores", { at, scores, weights: null, correction: null });
    const m = scores.map((line, i) => Math.max(now.m[i], ...line));
    told("maximum", {
      m, correction: m.map((largest, i) => Math.exp(now.m[i] - largest)),
      weights: scores.map((line, i) => line.map((score) => Math.exp(score - m[i]))),
    });
    const { correction, weights } = now;
    told("sum", { s: now.s.map((old, i) => old * correction[i] + sum(weights[i])) });
    now.read.v += keys.length * dims * ITEM;
    told("output", { acc: now.acc.map((old, i) => old.map((number, d) =>
      number * correction[i] + dot(weights[i], keys.map((key) => v[key][d])))) });
  });
  told("end", {
    at: null, scores: null, weights: null, correction: null,
    acc: now.acc.map((line, i) => line.map((number) => number / now.s[i])),
    lse: now.m.map((largest, i) => largest + Math.log(now.s[i])),
    written: rows.length * dims * ITEM,
  });
  return steps;
}

/** Bytes that all tiles of queries ask for, what must be read at least, and S if it were written. */
export function headOf(choice) {
  const { q, block_m } = choice;
  const row = q[0].length * ITEM;
  const plans = range(0, Math.ceil(q.length / block_m)).map((tile) => planned(choice, tile));
  const keys = plans.map(({ tiles }) => sum(tiles.map((one) => one.skipped ? 0 : one.keys.length)));
  return {
    tiles: plans.length, read: (q.length + 2 * sum(keys)) * row, least: 3 * q.length * row,
    scores: q.length ** 2 * ITEM,
  };
}

/** What registers and shared memory hold after a step: [name, bytes] each, whole tiles. */
export function held({ q, block_m, block_n }, step) {
  const dims = q[0].length;
  const numbers = [["m", block_m * SUM], ["l", block_m * SUM], ["acc", block_m * dims * SUM]];
  const square = block_m * block_n * SUM;
  const made = { scores: [["S", square]],
    maximum: [["P", square], ["c", block_m * SUM]],
    sum: [["P", square], ["c", block_m * SUM]], output: [["P", square]] };
  const tiles = [["q", block_m * dims * ITEM]];
  if (step.at !== null) tiles.push(["k", block_n * dims * ITEM]);
  if (step.kind === "output") tiles.push(["v", block_n * dims * ITEM]);
  return { registers: [...(made[step.kind] ?? []), ...numbers],
    shared: step.kind === "end" ? [] : tiles };
}

/** The step that a key asks for, or null: by steps, with Shift or Page by tiles of keys. */
export function stepBy(steps, number, key, shift) {
  if (key === "Home") return 1;
  if (key === "End") return steps.length;
  const forward = ["ArrowRight", "ArrowUp", "PageUp"].includes(key);
  if (!forward && !["ArrowLeft", "ArrowDown", "PageDown"].includes(key)) return null;
  const inside = (wanted) => Math.min(steps.length, Math.max(1, wanted));
  if (key.startsWith("Arrow") && !shift) return inside(number + (forward ? 1 : -1));
  const begins = range(1, steps.length + 1)
    .filter((at) => ["begin", "scores", "end"].includes(steps[at - 1].kind));
  return forward ? begins.find((at) => at > number) ?? steps.length
    : begins.findLast((at) => at < number) ?? 1;
}

/** A number with two decimals, or four digits where it is large. */
export function shown(number) {
  if (number === -Infinity) return "−∞";
  const size = Math.abs(number);
  const text = size < 99.995 ? size.toFixed(2) : String(Number(size.toPrecision(4)));
  return number < 0 && Number(text) !== 0 ? `−${text}` : text;
}

const many = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;
export const span = (numbers) => numbers.length === 1 ? String(numbers[0])
  : `${numbers[0]} to ${numbers.at(-1)}`;
export const bytes = (count) => `${count.toLocaleString("en-US")} bytes`;
const keysOf = (keys) => `${keys.length === 1 ? "key" : "keys"} ${span(keys)}`;
const queriesOf = (rows) => `${rows.length === 1 ? "query" : "queries"} ${span(rows)}`;

/** A step as sentences. One row stands for all: that whose largest score grows most. */
export function words(choice, steps, number) {
  const step = steps[number - 1];
  const { rows, tiles, met } = planned(choice, choice.tile);
  const row = choice.q[0].length * ITEM;
  if (step.kind === "begin") {
    return [`The tile of ${queriesOf(rows)} is read, ${bytes(step.read.q)}. No key has been seen: ` +
      "m is −∞, l and acc are 0."];
  }
  if (step.kind === "end") {
    const skipped = tiles.length - met;
    const [m, s, lse] = [step.m[0], Math.log(step.s[0]), step.lse[0]].map(shown);
    return [`All keys are seen: O = acc / l is written, ${bytes(step.written)}. L = m + log l: for ` +
      `query ${rows[0]}, ${m} + ${s} = ${lse}.`,
      ...(skipped ? [`${many(skipped, "tile")} of keys ${skipped === 1 ? "was" : "were"} skipped: ` +
        "none of these queries sees them."] : [])];
  }
  const { keys } = tiles[step.at];
  const where = `Tile ${step.at + 1} of ${met}, ${keysOf(keys)}:`;
  const made = steps.find((one) => one.at === step.at && one.kind === "maximum");
  const grown = made.m.map((largest, i) => largest - made.before.m[i]);
  const i = grown.indexOf(Math.max(...grown));
  const old = step.before;
  if (step.kind === "scores") {
    const hidden = sum(step.scores.map((line) => line.filter((one) => one === -Infinity).length));
    return [`${where} k is read, ${bytes(keys.length * row)}, and ` +
      `${many(rows.length * keys.length, "score")} are made, S = q · kᵀ / √d.`,
      ...(hidden ? [`${hidden} of them ${hidden === 1 ? "is" : "are"} −∞: the key comes after the query.`]
        : [])];
  }
  if (step.kind === "maximum") {
    if (old.m[i] === -Infinity) {
      return [`${where} m becomes the largest score of each row, ${shown(step.m[i])} for query ` +
        `${rows[i]}. P = e^(S − m). Nothing was summed before, so the correction c = e^(−∞) = 0 ` +
        "clears nothing."];
    }
    if (grown[i] === 0) {
      return [`${where} no score is above its row’s m. Every correction c is e^0 = 1; P = e^(S − m).`];
    }
    const count = grown.filter((one) => one > 0).length;
    return [`${where} m grows in ${count} of ${many(rows.length, "row")}, most for query ${rows[i]}, ` +
      `from ${shown(old.m[i])} to ${shown(step.m[i])}. What it has summed shrinks by the ` +
      `correction c = e^(${shown(old.m[i])} − ${shown(step.m[i]).replace(/^−.*/, "($&)")}) = ` +
      `${shown(step.correction[i])}. P = e^(S − m).`];
  }
  if (step.kind === "sum") {
    return [`${where} l = l · c + the row’s sum of P. For query ${rows[i]}, ` +
      `${shown(old.s[i])} · ${shown(step.correction[i])} + ${shown(sum(step.weights[i]))} = ` +
      `${shown(step.s[i])}.`];
  }
  const added = step.acc[i][0] - old.acc[i][0] * step.correction[i];
  const signed = shown(added).replace(/^−.*/, "($&)");
  return [`${where} v is read, ${bytes(keys.length * row)}, and acc = acc · c + P · v. The ` +
    `first number of query ${rows[i]}: ${shown(old.acc[i][0])} · ${shown(step.correction[i])} + ` +
    `${signed} = ${shown(step.acc[i][0])}.`];
}

const STRIP = 12;  // px of q, k, v and o beside the scores
const GAP = 4;
const EDGE = 20;  // px of a strip’s letter

/** The map of all scores, `width` px wide: its height and its shapes, each [tag, attributes, text]. */
export function stepperChart(choice, steps, number, width, hatch) {
  const step = steps[number - 1];
  const length = choice.q.length;
  const { rows, tiles } = planned(choice, choice.tile);
  const [left, top] = [EDGE + STRIP + GAP, 2 * (STRIP + GAP) + EDGE - 2];
  const side = Math.min(15, (width - left - GAP - STRIP - EDGE) / length);
  const right = left + length * side + GAP;
  const shapes = [];
  const x = (key) => left + key * side;
  const y = (row) => top + row * side;
  const box = (kind, at, down, wide, high) => {
    shapes.push(["rect", { x: at, y: down, width: wide, height: high, class: kind,
      style: kind === "skipped" ? `fill:url(#${hatch})` : "" }, ""]);
  };
  const letter = (text, at, down, anchor) => {
    shapes.push(["text", { x: at, y: down, "text-anchor": anchor, class: "label" }, text]);
  };
  const [first, tall] = [rows[0], rows.length * side];
  const all = length * side;
  const readNow = { scores: "k", output: "v", begin: "q" }[step.kind];

  ["k", "v"].forEach((name, line) => {
    const down = 1 + line * (STRIP + GAP);
    letter(name, left - 6, down + STRIP - 1, "end");
    box("tensor", left, down, all, STRIP);
    tiles.forEach(({ keys, skipped }, at) => {
      const seen = step.kind === "end" || step.at !== null &&
        (at < step.at || at === step.at && (name === "k" || step.kind === "output"));
      if (!skipped && seen) box("done", x(keys[0]), down, keys.length * side, STRIP);
      if (name === readNow && at === step.at) {
        box("now", x(keys[0]), down, keys.length * side, STRIP);
      }
    });
  });
  letter("q", EDGE + STRIP / 2, top - 4, "middle");
  box("tensor", EDGE, top, STRIP, all);
  box("done", EDGE, y(first), STRIP, tall);
  if (readNow === "q") box("now", EDGE, y(first), STRIP, tall);
  letter("o", right + STRIP / 2, top - 4, "middle");
  box("tensor", right, top, STRIP, all);
  if (step.kind === "end") ["done", "now"].forEach((kind) => box(kind, right, y(first), STRIP, tall));

  box("tensor", left, top, all, all);
  tiles.forEach(({ keys, skipped }, at) => {
    const wide = keys.length * side;
    if (skipped) box("skipped", x(keys[0]), y(first), wide, tall);
    else if (step.kind === "end" || step.at !== null && at <= step.at) {
      for (const row of rows) {
        const open = choice.causal ? keys.filter((key) => key <= row).length : keys.length;
        if (open) box("done", x(keys[0]), y(row), open * side, side);
      }
    }
  });
  const lines = (places, ends) => places.forEach((place) =>
    shapes.push(["line", { ...ends(place), class: "edge" }, ""]));
  lines(tiles.slice(1).map(({ keys }) => x(keys[0])), (at) => ({ x1: at, x2: at, y1: top, y2: top + all }));
  lines(range(1, Math.ceil(length / choice.block_m)).map((tile) => y(tile * choice.block_m)),
    (at) => ({ x1: left, x2: left + all, y1: at, y2: at }));
  if (step.at === null) box("row", x(0), y(first), all, tall);
  else box("now", x(tiles[step.at].keys[0]), y(first), tiles[step.at].keys.length * side, tall);
  return { width: right + STRIP + EDGE, height: top + all + 2, shapes };
}
