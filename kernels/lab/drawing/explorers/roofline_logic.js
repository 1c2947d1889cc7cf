// The logic of the roofline explorer, in functions without a page; roofline.js follows in the same
// module. It knows no operation and no card: formulas, ceilings and recordings come as data.

const DIGITS = [[0.0005, 0], [0.9995, 3], [9.995, 2], [99.95, 1]];

/** A number with three significant digits, without an exponent. */
export function digits(value) {
  const found = DIGITS.find(([limit]) => Math.abs(value) < limit);
  return value.toFixed(found ? found[1] : 0);
}

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

/** `268 MB` for (268435456, "B"): decimal prefixes, three significant digits. */
export function quantity(value, unit) {
  // 999.6 k is shown as 1.00 M.
  const [factor, letter] = PREFIXES.find(([f]) => value >= f * 0.9995) ?? [1, ""];
  const exact = factor === 1 && Number.isInteger(value);
  return `${exact ? value : digits(value / factor)} ${letter}${unit}`;
}

const TIMES = [[1e6, "s"], [1e4, "ms"], [0.9995, "µs"], [0, "ns"]];
const PER_US = { s: 1e-6, ms: 1e-3, µs: 1, ns: 1e3 };

/** `184 µs` for 184.2; `12.0 ms` from ten milliseconds on. */
export function duration(timeUs) {
  const [, unit] = TIMES.find(([limit]) => timeUs >= limit);
  return `${digits(timeUs * PER_US[unit])} ${unit}`;
}

const SIGNS = { rows: "rows", cols: "columns", m: "M", k: "K", n: "N" };

/** The value of a sum of terms such as [7, "rows", "cols"]. */
export function total(terms, sizes) {
  return terms.reduce(
    (sum, [factor, ...names]) => sum + names.reduce((product, n) => product * sizes[n], factor), 0);
}

/** A sum of terms as a reader writes it, like terms added: `7·rows·columns + 4·rows`. */
export function formula(terms) {
  const factors = new Map();
  for (const [factor, ...names] of terms) {
    const product = names.map((name) => SIGNS[name]).join("·");
    factors.set(product, (factors.get(product) ?? 0) + factor);
  }
  const texts = [...factors].map(([product, f]) => (f === 1 ? product : `${f}·${product}`));
  return texts.join(" + ") || "0";
}

/** The number that a field holds, or null: a whole number from 1 to `largest`. */
export function parseSize(text, largest) {
  const value = String(text).trim() === "" ? NaN : Number(text);
  return Number.isInteger(value) && value >= 1 && value <= largest ? value : null;
}

function shapeOf(state, operation, joint) {
  return operation.sizes.map((name) => state.sizes[name]).join(joint);
}

function groupOf(state, operation, card) {
  const shape = shapeOf(state, operation, "x");
  return state.groups.find((g) => g.slug === card?.slug && g.op === state.op &&
    g.shape === shape && g.dtype === state.dtype);
}

/** All that the state implies: bytes, FLOPs, bound, time in µs, recorded rows, sentences. */
export function predict(state) {
  const operation = state.operations.find((candidate) => candidate.key === state.op);
  const itemsize = state.itemsizes[state.dtype];
  const read = itemsize * total(operation.read, state.sizes);
  const write = itemsize * total(operation.write, state.sizes);
  const flops = total(operation.flops, state.sizes);
  const bytes = read + write;
  const card = state.cards.find((c) => c.key === state.card) ??
    state.cards.find((c) => c.slug === state.card) ?? null;
  const arithmetic = operation.arithmetic ?? state.dtype;
  const bandwidth = card?.bandwidth ?? null;
  const peak = card?.peaks[arithmetic] ?? null;
  const memoryUs = bandwidth && bytes / bandwidth * 1e6;
  const computeUs = flops === 0 ? 0 : peak && flops / peak * 1e6;
  const known = bandwidth !== null && computeUs !== null;
  const timeUs = known ? Math.max(memoryUs, computeUs) : null;
  const bound = known ? (memoryUs >= computeUs ? "memory" : "compute") : null;
  const group = groupOf(state, operation, card);
  const rows = (group?.rows ?? []).map((row) => ({
    ...row,
    intensity: row.bytes && row.flops / row.bytes,
    flopsPerS: row.flops / row.time_us * 1e6,
    ratio: timeUs && row.time_us / timeUs,
  }));
  const found = {
    operation, itemsize, read, write, bytes, flops, card, arithmetic, bandwidth, peak, timeUs,
    bound, group, rows, intensity: flops / bytes, ridge: bandwidth && peak && peak / bandwidth,
  };
  return { ...found, ...words(state, found) };
}

/** What the chart says, as sentences: `summary` in all, `recorded` a sentence for each row. */
function words(state, p) {
  const shape = shapeOf(state, p.operation, "×");
  const where = p.card ? ` on ${p.card.name}` : "";
  const summary = [
    `${p.operation.label}, ${shape} ${state.dtype}${where}: it must move ` +
    `${quantity(p.bytes, "B")} (${quantity(p.read, "B")} read, ${quantity(p.write, "B")} ` +
    `written) and do ${quantity(p.flops, "FLOP")}, ${digits(p.intensity)} FLOP/byte.`,
  ];
  if (p.card === null) {
    summary.push(state.card
      ? `The card “${state.card}” is unknown: no ceilings of it are at hand, so neither its ` +
        "bound nor its time can be told."
      : "No card is known, so neither a bound nor a time can be told.");
  } else if (p.timeUs === null) {
    summary.push(`No ${p.arithmetic} peak of this card is at hand, so neither its bound nor its ` +
      "time can be told.");
  } else {
    summary.push(boundWords(p));
    summary.push(...floorWords(p));
  }
  return { summary, ...recordedWords(p) };
}

function boundWords(p) {
  if (p.flops === 0) {
    return "Without arithmetic it has no place on the chart’s logarithmic axis: memory-bound, " +
      `at least ${duration(p.timeUs)} at ${quantity(p.bandwidth, "B/s")}.`;
  }
  const side = p.bound === "compute" ? "right of" : p.intensity < p.ridge ? "left of" : "at";
  return `That is ${side} the ridge at ${digits(p.ridge)} FLOP/byte, where ` +
    `${quantity(p.bandwidth, "B/s")} of memory meet ${quantity(p.peak, "FLOP/s")} of ` +
    `${p.arithmetic} arithmetic: ${p.bound}-bound, at least ${duration(p.timeUs)}, at most ` +
    `${quantity(p.flops / p.timeUs * 1e6, "FLOP/s")}.`;
}

/** What the two ceilings leave out: a launch's own time, and a cache that holds everything. */
function floorWords(p) {
  const found = [];
  if (p.card.launch_us && p.timeUs < p.card.launch_us) {
    found.push(`A launch that computes nothing takes longer here: ${duration(p.card.launch_us)}.`);
  }
  if (p.card.l2_bytes && p.bytes <= p.card.l2_bytes) {
    found.push(`All of it fits into the L2 cache of ${quantity(p.card.l2_bytes, "B")}: a call ` +
      "that finds its inputs there can be faster than this bound.");
  }
  return found;
}

function recordedWords(p) {
  if (!p.group) {
    return {
      recordedTitle: "Nothing was recorded for this choice" +
        (p.ridge ? ", so the chart shows no point." : "."),
      recorded: [],
    };
  }
  const recorded = p.rows.map((row) => {
    const ratio = row.ratio === null ? "" : `, ${digits(row.ratio)} times the bound`;
    if (!row.bytes) {
      const why = row.flops === 0 ? "it does no arithmetic" : "its bytes were not measured";
      return `${duration(row.time_us)}${ratio}; no point, since ${why}.`;
    }
    const whose = row.bytes_of === "DRAM"
      ? `DRAM moved ${quantity(row.bytes, "B")}` : `${quantity(row.bytes, "B")} touched, counted`;
    return `${duration(row.time_us)}${ratio}; ${whose}: ${digits(row.intensity)} FLOP/byte at ` +
      `${quantity(row.flopsPerS, "FLOP/s")}.`;
  });
  const cached = p.rows.some((row) => row.bytes_of === "DRAM" && row.bytes < 0.98 * p.bytes)
    ? " Where DRAM moved fewer bytes than the ideal ones, a part stayed in the cache." : "";
  return {
    recordedTitle: `Recorded on one ${p.group.card} on ${p.group.date}.${cached}`, recorded,
  };
}

const decades = (low, high) => {
  const found = [];
  for (let e = Math.ceil(Math.log10(low)); e <= Math.floor(Math.log10(high)); e += 1) found.push(e);
  return found;
};

const powerOfTen = (exponent) => {
  if (exponent < 0) return (10 ** exponent).toFixed(-exponent);
  return quantity(10 ** exponent, "").trim().replace(/(\.0+)(?=\D|$)/, "");
};

/**
 * The chart, `width` px wide: its height and its shapes, each [tag, attributes, text]. Without
 * ceilings there are no shapes.
 * A row is drawn only where its bytes are known; the prediction is a line, never a point.
 */
export function chart(p, looks, width) {
  if (!p.ridge) return { height: 0, shapes: [] };
  const height = Math.round(Math.min(400, Math.max(290, width * 0.62)));
  const box = { left: 56, right: width - 12, top: 10, bottom: height - 44 };
  const points = p.rows.filter((row) => row.bytes && row.flops);
  const xs = [p.intensity, ...points.map((row) => row.intensity)].filter((x) => x > 0);
  const xLow = Math.min(0.04, ...xs.map((x) => x / 2));
  const xHigh = Math.max(3000, p.ridge * 5, ...xs.map((x) => x * 2));
  const yLow = Math.min(xLow * p.bandwidth, ...points.map((row) => row.flopsPerS / 3)) / 1.5;
  const yHigh = p.peak * 6;
  const place = (value, low, high, start, end) =>
    start + Math.log(value / low) / Math.log(high / low) * (end - start);
  const x = (value) => place(value, xLow, xHigh, box.left, box.right);
  const y = (value) => place(value, yLow, yHigh, box.bottom, box.top);
  const roof = (value) => Math.min(p.peak, value * p.bandwidth);
  const shapes = [];
  const add = (tag, attributes, text = "") => shapes.push([tag, attributes, text]);
  const label = (text, left, top, anchor, more = {}) =>
    add("text", { x: left, y: top, "text-anchor": anchor, ...more }, text);

  const corners = [[xLow, roof(xLow)], [p.ridge, p.peak], [xHigh, p.peak]]
    .map(([a, b]) => [x(a), y(b)]);
  const slope = `${corners[0].join()} ${corners[1].join()} ${x(p.ridge)},${box.bottom} ` +
    `${box.left},${box.bottom}`;
  const flat = `${corners[1].join()} ${corners[2].join()} ${box.right},${box.bottom} ` +
    `${x(p.ridge)},${box.bottom}`;
  add("polygon", { points: slope, class: "memory" });
  add("polygon", { points: flat, class: "compute" });

  const step = width < 480 ? 2 : 1;
  for (const e of decades(xLow, xHigh)) {
    const at = x(10 ** e);
    add("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, class: "grid" });
    if (e % step === 0) label(powerOfTen(e), at, box.bottom + 17, "middle", { class: "tick" });
  }
  for (const e of decades(yLow, yHigh)) {
    const at = y(10 ** e);
    add("line", { x1: box.left, x2: box.right, y1: at, y2: at, class: "grid" });
    label(powerOfTen(e), box.left - 6, at + 4, "end", { class: "tick" });
  }
  label("FLOP per byte", (box.left + box.right) / 2, height - 8, "middle");
  const middle = (box.top + box.bottom) / 2;
  label("FLOP/s", 12, middle, "middle", { transform: `rotate(-90 12 ${middle})` });

  add("line", { x1: x(p.ridge), x2: x(p.ridge), y1: box.top + 18, y2: box.bottom, class: "ridge" });
  label(`ridge ${digits(p.ridge)} FLOP/byte`, Math.min(x(p.ridge), box.right - 70), box.top + 12,
    "middle", { class: "tick" });
  if (x(p.ridge) + 180 < box.right) {
    label("← memory-bound", x(p.ridge) - 80, box.top + 12, "end", { class: "tick" });
    label("compute-bound →", x(p.ridge) + 80, box.top + 12, "start", { class: "tick" });
  }
  add("polyline", { points: corners.map((c) => c.join()).join(" "), class: "roof" });
  label(`${quantity(p.peak, "FLOP/s")} ${p.arithmetic}`, box.right, corners[1][1] - 7, "end");
  const angle = Math.atan2(corners[1][1] - corners[0][1], corners[1][0] - corners[0][0]);
  const [half, up] = [0.42, 8];
  const sx = corners[0][0] + half * (corners[1][0] - corners[0][0]) + up * Math.sin(angle);
  const sy = corners[0][1] + half * (corners[1][1] - corners[0][1]) - up * Math.cos(angle);
  label(`memory ${quantity(p.bandwidth, "B/s")}`, sx, sy, "middle",
    { transform: `rotate(${angle * 180 / Math.PI} ${sx} ${sy})` });

  if (p.intensity > 0) {
    const at = x(p.intensity);
    const left = at < (box.left + box.right) / 2;
    add("line", { x1: at, x2: at, y1: y(roof(p.intensity)), y2: box.bottom, class: "chosen" });
    const spot = [at + (left ? 7 : -7), left ? "start" : "end"];
    label(p.operation.label, spot[0], box.bottom - 24, spot[1], { class: "chosen-label" });
    label(`${digits(p.intensity)} FLOP/byte`, spot[0], box.bottom - 8, spot[1],
      { class: "chosen-label" });
  }
  for (const row of points) {
    const at = `translate(${x(row.intensity)} ${y(row.flopsPerS)}) scale(13)`;
    add("path", { ...marker(row, looks), transform: at, class: `point ${row.bytes_of}` },
      `${row.variant}, ${duration(row.time_us)}`);
  }
  return { height, shapes };
}

/** A full marker where DRAM's bytes were measured, a hollow one where they were counted. */
export function marker(row, looks) {
  const { color, path } = looks[row.variant];
  const full = row.bytes_of === "DRAM";
  const style = full ? `fill:${color}` : `fill:var(--fk-paper);stroke:${color}`;
  return { d: path, style };
}
