// The logic of the tiler, in functions without a page; tiler.js follows in the same module. A test
// holds its counts against the ledger of the kernel itself.

const ITEM = 2;  // bytes of a number of fp16 or bf16
const SUM = 4;  // and of a sum, one register
const ceil = (a, b) => Math.ceil(a / b);

/** The tile of program `number`, as the kernel’s tile_at finds it: [block of rows, of columns]. */
export function tileAt(number, tilesM, tilesN, group) {
  const inGroup = group * tilesN;
  const first = Math.floor(number / inGroup) * group;
  const height = Math.min(tilesM - first, group);
  const inside = number % inGroup;
  return [first + inside % height, Math.floor(inside / height)];
}

/**
 * The rows of x and of the weight that differ within a wave, for each wave of `programs`.
 *
 * A block at an edge has fewer rows. `tiles` are those of the first wave, in order.
 */
export function wavesOf({ m, n, block_m, block_n, group }, programs) {
  const [tilesM, tilesN] = [ceil(m, block_m), ceil(n, block_n)];
  const seenM = new Int32Array(tilesM).fill(-1);
  const seenN = new Int32Array(tilesN).fill(-1);
  const found = { rows: 0, tiles: [], first: { m: 0, n: 0, rows: 0 } };
  for (let number = 0; number < tilesM * tilesN; number += 1) {
    const wave = Math.floor(number / programs);
    const [i, j] = tileAt(number, tilesM, tilesN, group);
    if (wave === 0) found.tiles.push([i, j]);
    let rows = 0;
    if (seenM[i] !== wave) {
      seenM[i] = wave;
      rows += Math.min(block_m, m - i * block_m);
      if (wave === 0) found.first.m += 1;
    }
    if (seenN[j] !== wave) {
      seenN[j] = wave;
      rows += Math.min(block_n, n - j * block_n);
      if (wave === 0) found.first.n += 1;
    }
    found.rows += rows;
    if (wave === 0) found.first.rows += rows;
  }
  return found;
}

/** All that the choices imply: bytes, waves, what a program takes, times in µs, the bound. */
export function reckon(choice, card) {
  const { m, k, n, block_m, block_n, block_k, stages } = choice;
  const [tilesM, tilesN] = [ceil(m, block_m), ceil(n, block_n)];
  const programs = tilesM * tilesN;
  const askedX = m * k * tilesN * ITEM;
  const askedWeight = n * k * tilesM * ITEM;
  const mustMove = (m * k + n * k + m * n) * ITEM;
  const flops = 2 * m * n * k;
  const waves = ceil(programs, card.sms);
  const distinct = wavesOf(choice, card.sms);
  const fromDram = distinct.rows * k * ITEM;
  const shared = stages * (block_m + block_n) * block_k * ITEM;
  const sums = block_m * block_n;
  // A tile costs the same however much of it is masked, and the last wave as much as a full one.
  const computeUs = waves * card.sms * 2 * sums * k / card.peak * 1e6;
  const memoryUs = (fromDram + m * n * ITEM) / card.bandwidth * 1e6;
  return {
    tilesM, tilesN, programs, askedX, askedWeight, mustMove, flops, waves, distinct, fromDram,
    shared, sums, computeUs, memoryUs,
    intensity: flops / (askedX + askedWeight),
    used: flops / (waves * card.sms * 2 * sums * k),
    registers: sums / card.registers,
    fits: shared <= card.shared && sums < card.registers,
    timeUs: Math.max(computeUs, memoryUs),
    bound: memoryUs >= computeUs ? "memory" : "compute",
  };
}

const UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

/** Three digits of a number, without an exponent. */
export function digits(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/** `268 MB` for 268435456: decimal prefixes. */
export function bytes(value) {
  const [factor, unit] = UNITS.find(([f]) => value >= f * 0.9995) ?? [1, "B"];
  return factor === 1 ? `${value} B` : `${digits(value / factor)} ${unit}`;
}

export function duration(us) {
  return us >= 1e4 ? `${digits(us / 1e3)} ms` : `${digits(us)} µs`;
}

const many = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

/** What the map and the figures show, as sentences. */
export function words(choice, card, found) {
  const { m, k, n, block_m, block_n, group } = choice;
  const { first, tiles } = found.distinct;
  const size = `${m}×${k}×${n} in tiles of ${block_m}×${block_n}`;
  const order = group === 1 ? "row by row" : `in groups of ${many(group, "row")}`;
  const said = [
    `${size}: ${many(found.programs, "program")} ask for ` +
    `${bytes(found.askedX + found.askedWeight)}, ${digits(found.intensity)} FLOP for each byte.`,
    `On ${card.name} they run in ${many(found.waves, "wave")}, ${order}. The first, of ` +
    `${many(tiles.length, "tile")}, touches ${many(first.m, "block")} of rows of x and ` +
    `${first.n} of the weight: ${bytes(first.rows * k * 2)}. All waves together touch ` +
    `${bytes(found.fromDram)}; the product must move ${bytes(found.mustMove)}.`,
  ];
  if (found.shared > card.shared) {
    said.push(`It does not fit: ${bytes(found.shared)} of shared memory, and a program has ` +
      `${bytes(card.shared)} at most.`);
  } else if (found.sums >= card.registers) {
    said.push(`It does not fit: ${found.sums} sums are all the registers of a multiprocessor.`);
  } else {
    const [binds, other, rest] = found.bound === "compute"
      ? ["Arithmetic", "memory", found.memoryUs] : ["Memory", "arithmetic", found.computeUs];
    said.push(`${binds} binds: at least ${duration(found.timeUs)}; ${other} alone takes ` +
      `${duration(rest)}. ` +
      `${Math.round(100 * found.used)} % of the arithmetic that is started is wanted.`);
  }
  if (card.plain) said.push("Here tl.dot uses no tensor cores: the peak is that of plain FMAs.");
  return said;
}

/** The map of the tiles, `width` px wide: its height and its shapes, each [tag, attributes]. */
export function tilerChart(found, width) {
  const side = 14;  // of the marks
  const gap = 4;
  const across = Math.min((width - side - gap) / found.tilesN, 24);
  const down = Math.min(280 / found.tilesM, 24);
  const shapes = [];
  const add = (attributes) => shapes.push(["rect", attributes]);
  const x = (n) => side + gap + n * across;
  const y = (m) => side + gap + m * down;
  const inner = (size) => Math.max(size - 1, Math.min(size, 0.7));
  add({ x: x(0), y: y(0), width: found.tilesN * across, height: found.tilesM * down, class: "all" });
  for (const [i, j] of found.distinct.tiles) {
    add({ x: x(j), y: y(i), width: inner(across), height: inner(down), class: "first" });
  }
  for (const i of new Set(found.distinct.tiles.map(([row]) => row))) {
    add({ x: 0, y: y(i), width: side, height: inner(down), class: "shared" });
  }
  for (const j of new Set(found.distinct.tiles.map(([, col]) => col))) {
    add({ x: x(j), y: 0, width: inner(across), height: side, class: "shared" });
  }
  return { height: y(found.tilesM) + 2, shapes };
}
