// The logic of the sector explorer, in functions without a page; sectors.js follows in the same
// module. The emulator counts by the same rule, and a test holds the two together.

const LANES = 32;
const SECTOR = 32;  // bytes
const LINE = 128;  // bytes of a cache line, four sectors

/**
 * One request of a warp in which lane i wants `width` bytes from byte (offset + i·stride)·width on.
 *
 * `lines` are the cache lines touched: their first byte, the sectors fetched of them, and for each
 * of their bytes the lane that wants it, or null. Lanes that want one byte share it: the first is
 * named. `asked` is what all lanes ask for, `wanted` what differs.
 */
export function request({ stride, width, offset }) {
  const lines = new Map();
  const wanted = new Set();
  for (let lane = 0; lane < LANES; lane += 1) {
    for (let byte = 0; byte < width; byte += 1) {
      const at = (offset + lane * stride) * width + byte;
      const first = at - (at % LINE);
      if (!lines.has(first)) lines.set(first, { first, sectors: new Set(), lanes: Array(LINE).fill(null) });
      const line = lines.get(first);
      line.sectors.add(Math.floor((at - first) / SECTOR));
      line.lanes[at - first] ??= lane;
      wanted.add(at);
    }
  }
  const sorted = [...lines.values()].sort((a, b) => a.first - b.first)
    .map((line) => ({ ...line, sectors: [...line.sectors].sort() }));
  const sectors = sorted.reduce((sum, line) => sum + line.sectors.length, 0);
  const fetched = sectors * SECTOR;
  return {
    lines: sorted, sectors, fetched, asked: LANES * width, wanted: wanted.size,
    fewest: Math.ceil(wanted.size / SECTOR), share: wanted.size / fetched,
  };
}

const times = (value) => Number(value.toFixed(2)).toString();

/** What the picture shows, as a sentence or two. */
export function words({ stride, width, offset }, found) {
  const bytes = `${width} byte${width > 1 ? "s" : ""}`;
  const apart = stride === 0 ? "all from one address" :
    stride === 1 ? "side by side" : `${stride * width} bytes apart`;
  const start = offset === 0 ? "from the start of a cache line on" : `${offset * width} bytes behind it`;
  const said = [
    `32 lanes load ${bytes} each, ${apart}, ${start}: ${found.sectors} ` +
    `sector${found.sectors > 1 ? "s" : ""} of 32 bytes, ${found.fetched} bytes for ` +
    `${found.wanted} that are wanted.`,
  ];
  said.push(found.sectors === found.fewest
    ? "No arrangement of these bytes takes fewer."
    : `Packed and aligned, the same bytes take ${found.fewest}: this is ` +
      `${times(found.sectors / found.fewest)} times as many.`);
  return said;
}

/** The map, `width` px wide: its height and its shapes, each [tag, attributes, text]. */
export function sectorChart(found, width) {
  const left = 62;
  const top = 22;
  const side = found.lines.length > 16 ? 9 : found.lines.length > 6 ? 14 : 22;
  const scale = (width - left - 8) / LINE;
  const shapes = [];
  const add = (tag, attributes, text = "") => shapes.push([tag, attributes, text]);
  const x = (byte) => left + byte * scale;
  for (let edge = 0; edge <= LINE; edge += SECTOR) {
    add("text", { x: x(edge), y: 13, "text-anchor": edge === LINE ? "end" : "middle", class: "tick" },
      String(edge));
  }
  found.lines.forEach((line, row) => {
    const y = top + row * side;
    const height = side - 2;
    add("rect", { x: left, y, width: LINE * scale, height, class: "line" });
    for (const sector of line.sectors) {
      add("rect", { x: x(sector * SECTOR), y, width: SECTOR * scale, height, class: "fetched" });
    }
    for (let start = 0; start < LINE;) {
      const lane = line.lanes[start];
      let end = start + 1;
      while (end < LINE && line.lanes[end] === lane) end += 1;
      if (lane !== null) {
        add("rect", { x: x(start), y, width: (end - start) * scale, height,
          class: lane % 2 ? "lane odd" : "lane" });
      }
      start = end;
    }
    if (row % Math.ceil(14 / side) === 0) {
      add("text", { x: left - 6, y: y + height / 2 + 4, "text-anchor": "end", class: "tick" },
        String(line.first));
    }
  });
  const bottom = top + found.lines.length * side - 2;
  for (let edge = SECTOR; edge < LINE; edge += SECTOR) {
    add("line", { x1: x(edge), x2: x(edge), y1: top, y2: bottom, class: "edge" });
  }
  return { height: bottom + 4, shapes };
}
