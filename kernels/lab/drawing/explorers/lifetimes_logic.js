// The logic of the explorer of lifetimes, in functions without a page; lifetimes.js follows in the
// same module. Python hands over launches, tensors and where each lies; a test holds what is summed
// here to the data flow of the layer.

const UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

/** Three digits of a number, without an exponent. */
export function digits(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/** `8.39 MB` for 8388608: decimal prefixes. */
export function bytes(value) {
  const [factor, unit] = UNITS.find(([f]) => value >= f * 0.9995) ?? [1, "B"];
  return factor === 1 ? `${value} B` : `${digits(value / factor)} ${unit}`;
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const sizes = (tensors) => sum(tensors.map((one) => one.size));
const last = (one) => Math.max(one.writer, ...one.readers);

/** What lives while launch `number`, from 1, runs, and what of it somebody still reads. */
export function alive(flow, number) {
  const held = flow.tensors.filter((one) => one.writer <= number && number <= one.until);
  const needed = held.filter((one) => number <= last(one));
  return { held, needed, taken: sizes(held), wanted: sizes(needed) };
}

/** The most bytes that are taken at once, and the launches at which they are. */
export function peak(flow) {
  const taken = flow.launches.map((_, at) => alive(flow, at + 1).taken);
  const most = Math.max(...taken);
  return { most, at: taken.flatMap((one, at) => (one === most ? [at + 1] : [])) };
}

/** The launch that a key leads to, or null for a key that does nothing here. */
export function stepBy(flow, number, key) {
  const end = flow.launches.length;
  const to = { ArrowRight: number + 1, ArrowUp: number + 1, ArrowLeft: number - 1,
    ArrowDown: number - 1, Home: 1, End: end }[key];
  return to === undefined ? null : Math.min(Math.max(to, 1), end);
}

const listed = (names) => names.length < 2 ? names.join("")
  : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;

/** A launch as sentences. */
export function words(flow, number) {
  const launch = flow.launches[number - 1];
  const { held, needed, taken, wanted } = alive(flow, number);
  const { most, at } = peak(flow);
  const moved = (of) => listed(of.map(([name, size]) => `${name} (${bytes(size)})`));
  const said = [`Launch ${number} of ${flow.launches.length}, ${launch.name}: reads ` +
    `${moved(launch.reads)}; writes ${moved(launch.writes)}.`];
  said.push(`Memory taken: ${bytes(taken)}, by ${listed(held.map((one) => one.name))}` +
    `${at.includes(number) ? ", the most of all launches" : ` (at most ${bytes(most)}, in launch` +
      `${at.length > 1 ? "es" : ""} ${listed(at.map(String))})`}.`);
  const idle = held.filter((one) => !needed.includes(one));
  if (idle.length) {
    said.push(`Of these nobody reads ${listed(idle.map((one) => one.name))} any more: ` +
      `${bytes(wanted)} would do.`);
  }
  const freed = held.filter((one) => one.until === number && one.readers.length);
  if (freed.length) said.push(`Behind it ${listed(freed.map((one) => one.name))} can go.`);
  return said;
}

const LEFT = 46;  // px of the numbers at the left
const TOP = 12;
const BELOW = 34;

/** The picture, `width` px wide: its height and its shapes, each [tag, attributes, text]. */
export function lifetimesChart(flow, number, width, hatch) {
  const count = flow.launches.length;
  const across = (width - LEFT - 4) / count;
  const height = 260;
  const { most } = peak(flow);
  const top = Math.max(...flow.tensors.map((one) => one.offset + one.size), most);
  const down = (height - TOP - BELOW) / (top * 1.06);
  const x = (launch) => LEFT + (launch - 1) * across;
  const y = (size) => height - BELOW - size * down;
  const shapes = [];
  const box = (kind, from, to, one, style = "") => shapes.push(["rect", { x: x(from), y:
    y(one.offset + one.size), width: (to - from + 1) * across, height: one.size * down,
    class: kind, style }, ""]);
  const text = (told, at, deep, anchor, kind) => shapes.push(["text", { x: at, y: deep,
    "text-anchor": anchor, class: kind }, told]);
  const step = top > 0 ? 10 ** Math.floor(Math.log10(top)) : 1;
  const tick = top / step < 2 ? step / 2 : top / step < 5 ? step : 2 * step;
  for (let size = 0; size <= top * 1.03; size += tick) {
    shapes.push(["line", { x1: LEFT, x2: width - 4, y1: y(size), y2: y(size), class: "grid" }, ""]);
    text(size ? bytes(size).replace(/\.0+ /, " ") : "0", LEFT - 5, y(size) + 4, "end", "tick");
  }
  shapes.push(["rect", { x: x(number), y: TOP, width: across, height: height - TOP - BELOW,
    class: "cursor" }, ""]);
  flow.tensors.forEach((one, at) => {
    const end = one.readers.length ? last(one) : one.until;
    const live = one.writer <= number && number <= one.until;
    box(`tensor look-${at % 7}${live ? " live" : ""}`, one.writer, end, one);
    if (one.until > end) {
      box(`held${live ? " live" : ""}`, end + 1, one.until, one, `fill:url(#${hatch})`);
    }
    const middle = (x(one.writer) + x(end + 1)) / 2;
    const wide = (end - one.writer + 1) * across;
    if (one.name.length * 7 < wide) {
      text(one.name, middle, y(one.offset + one.size / 2) + 4, "middle", "name");
    }
    for (const reader of one.readers) {
      const [at2, base] = [x(reader) + across / 2, y(one.offset)];
      shapes.push(["path", { d: `M${at2 - 4} ${base}h8l-4 -6z`, class: "reads" }, ""]);
    }
  });
  shapes.push(["line", { x1: LEFT, x2: width - 4, y1: y(most), y2: y(most), class: "most" }, ""]);
  flow.launches.forEach((_, at) => text(String(at + 1), x(at + 1) + across / 2, height - 16, "middle",
    at + 1 === number ? "tick now" : "tick"));
  text("launch", (LEFT + width) / 2, height - 2, "middle", "tick");
  return { width, height, shapes };
}
