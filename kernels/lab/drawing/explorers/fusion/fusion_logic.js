// The logic of the fusion explorer, in functions without a page; fusion.js follows in the same
// module. It knows no chain and no card: both come as data. A test holds its sums equal to those of
// model.py, whose docstring has the rules.

const DIGITS = [[0.0005, 0], [0.9995, 3], [9.995, 2], [99.95, 1]];

/** A number with three significant digits, without an exponent. */
export function digits(value) {
  const found = DIGITS.find(([limit]) => Math.abs(value) < limit);
  return value.toFixed(found ? found[1] : 0);
}

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

/** `268 MB` for 268435456: decimal prefixes, three significant digits. */
export function bytes(value) {
  const [factor, letter] = PREFIXES.find(([f]) => value >= f * 0.9995) ?? [1, ""];
  const exact = factor === 1 && Number.isInteger(value);
  return `${exact ? value : digits(value / factor)} ${letter}B`;
}

const TIMES = [[1e6, "s"], [1e4, "ms"], [0.9995, "µs"], [0, "ns"]];
const PER_US = { s: 1e-6, ms: 1e-3, µs: 1, ns: 1e3 };

/** `184 µs` for 184.2; `12.0 ms` from ten milliseconds on. */
export function duration(timeUs) {
  const [, unit] = TIMES.find(([limit]) => timeUs >= limit);
  return `${digits(timeUs * PER_US[unit])} ${unit}`;
}

const many = (count, one) => `${count} ${one}${count === 1 ? "" : one.endsWith("h") ? "es" : "s"}`;

const sum = (values) => values.reduce((all, value) => all + value, 0);

/** The value of a sum of terms such as [7, "rows", "cols"]. */
export function total(terms, sizes) {
  return sum(terms.map((term) => term.reduce(
    (product, part) => product * (typeof part === "string" ? sizes[part] : part), 1)));
}

/** The steps of each launch, by their places: `closed` has a boolean a joint. */
export function groups(closed) {
  const found = [[0]];
  closed.forEach((shut, joint) => {
    if (shut) found.at(-1).push(joint + 1);
    else found.push([joint + 1]);
  });
  return found;
}

/** Why an open joint can’t be closed as the others stand; null if it can. */
export function barred(chain, closed, joint) {
  const now = groups(closed);
  const left = now.find((steps) => steps.includes(joint));
  const right = now.find((steps) => steps.includes(joint + 1));
  for (const later of right) {
    const [, why] = chain.steps[later].apart.find(([earlier]) => left.includes(earlier)) ?? [];
    if (why) return why;
  }
  return null;
}

function lastOf(chain, ofStep, what) {
  return Object.fromEntries(
    chain.steps.flatMap((step, at) => step[what].map((name) => [name, ofStep[at]])));
}

function timeOf(chain, sizes, steps, moved, card) {
  if (!card) return { timeUs: null, bound: null };
  const memory = moved / card.bandwidth * 1e6;
  const flops = {};
  for (const at of steps) {
    const { arithmetic, flops: terms } = chain.steps[at];
    flops[arithmetic] = (flops[arithmetic] ?? 0) + total(terms, sizes);
  }
  let compute = 0;
  for (const [arithmetic, count] of Object.entries(flops)) {
    if (count === 0) continue;
    const peak = card.peaks[arithmetic];
    if (!peak) return { timeUs: null, bound: null, lacks: arithmetic };
    compute = Math.max(compute, count / peak * 1e6);
  }
  return { timeUs: Math.max(memory, compute), bound: memory >= compute ? "memory" : "compute" };
}

/** The launches of a choice of joints, and their sums. */
export function plan(chain, sizes, closed, card, launched) {
  const size = Object.fromEntries(
    Object.entries(chain.tensors).map(([name, terms]) => [name, total(terms, sizes)]));
  const now = groups(closed);
  const ofStep = now.flatMap((steps, number) => steps.map(() => number));
  const made = lastOf(chain, ofStep, "writes");
  const [read, held] = [lastOf(chain, ofStep, "reads"), lastOf(chain, ofStep, "holds")];
  const until = {};  // of each tensor that is written: the last launch that it lives in
  for (const [name, launch] of Object.entries(made)) {
    if (chain.kept.includes(name) || !(name in read)) until[name] = now.length;
    else if (read[name] > launch) until[name] = Math.max(read[name], held[name] ?? 0);
  }
  const launches = now.map((steps, number) => {
    const reads = [...new Set(steps.flatMap((at) => chain.steps[at].reads))];
    const readHere = sum(reads.filter((name) => made[name] !== number).map((name) => size[name]));
    const written = Object.keys(until).filter((name) => made[name] === number);
    const writtenHere = sum(written.map((name) => size[name]));
    const alive = Object.keys(until)
      .filter((name) => made[name] <= number && number <= until[name]);
    const took = timeOf(chain, sizes, steps, readHere + writtenHere, card);
    return { steps, read: readHere, write: writtenHere, names: alive,
      alive: sum(alive.map((name) => size[name])), ...took };
  });
  const known = card && launches.every((one) => one.timeUs !== null);
  const deviceUs = known ? sum(launches.map((one) => one.timeUs + card.launch_us)) : null;
  const hostUs = known && launched === "host" ? launches.length * card.host_us : 0;
  const memory = Math.max(...launches.map((one) => one.alive));
  return {
    launches, size, made, until, deviceUs, hostUs, memory,
    moved: sum(launches.map((one) => one.read + one.write)),
    fullest: launches.findIndex((one) => one.alive === memory),
    timeUs: known ? Math.max(deviceUs, hostUs) : null,
    lacks: launches.find((one) => one.lacks)?.lacks ?? null,
  };
}

/** All that a state implies: its chain and card, the plans of this choice, of none, of a preset. */
export function reckon(state) {
  const chain = state.chains.find((one) => one.key === state.chain);
  const card = state.cards.find((one) => one.key === state.card) ??
    state.cards.find((one) => one.slug === state.card) ?? null;
  const of = (closed) => plan(chain, state.sizes, closed, card, state.launched);
  const closed = state.closed;
  const most = chain.presets.at(-1).closed;
  const found = { chain, card, closed, of, now: of(closed), open: of(closed.map(() => false)),
    most: of(most) };
  return { ...found, joints: closed.map((_, joint) => jointOf(found, joint)) };
}

const listed = (names) => names.length < 2 ? names.join("") :
  `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
const verb = (names, one, several) => names.length === 1 ? one : several;

/** One joint: why it must stay open, or what crosses it and what closing it saves. */
function jointOf(found, joint) {
  const { chain, closed, now } = found;
  const shut = closed[joint];
  const why = shut ? null : barred(chain, closed, joint);
  if (why) return { shut, why, words: why };
  const flipped = closed.map((one, at) => (at === joint ? !one : one));
  const other = found.of(flipped);
  const [apart, together] = shut ? [other, now] : [now, other];
  return { shut, why, other, ...jointWords(chain, joint, shut, apart, together) };
}

function jointWords(chain, joint, shut, apart, together) {
  const place = apart.launches.findIndex((one) => one.steps.includes(joint));
  const [left, right] = [apart.launches[place], apart.launches[place + 1]];
  const reads = (launch, number) => new Set(launch.steps.flatMap((at) => chain.steps[at].reads)
    .filter((name) => apart.made[name] !== number));
  const [ofLeft, ofRight] = [reads(left, place), reads(right, place + 1)];
  const made = [...ofRight].filter((name) => apart.made[name] === place);
  const stays = made.filter((name) => !(name in together.until));
  const written = made.filter((name) => name in together.until);
  const twice = [...ofRight].filter((name) => ofLeft.has(name));
  const said = [];
  if (stays.length) {
    said.push(shut ? `${listed(stays)} never ${verb(stays, "leaves", "leave")} the launch`
      : `${listed(stays)} ${verb(stays, "is", "are")} written and read back`);
  }
  if (written.length) {
    const reasons = [...new Set(written.map((name) => chain.kept.includes(name) ? chain.kept_for
      : "a later step reads it"))];
    said.push(shut
      ? `${listed(written)} ${verb(written, "is", "are")} still written (${listed(reasons)})`
      : `${listed(written)} ${verb(written, "is", "are")} read back`);
  }
  if (twice.length) {
    said.push(`${listed(twice)} ${verb(twice, "is", "are")} read ${shut ? "once" : "twice"}`);
  }
  const saved = apart.moved - together.moved;
  const savedUs = apart.timeUs === null || together.timeUs === null ? null
    : apart.timeUs - together.timeUs;
  return { saved, savedUs, words: said.join("; ") || "nothing crosses here" };
}

/** `537 MB and 161 µs`: what closing a joint saves. */
export function savings(joint) {
  const time = joint.savedUs === null ? "" : ` and ${signed(joint.savedUs)}`;
  return `${bytes(joint.saved)}${time}`;
}

const signed = (us) => us < -5e-4 ? `−${duration(-us)}` : duration(Math.max(us, 0));

const NAMED = 5;  // tensors that a sentence names

/** The tensors alive where most are, the largest by name if they are many. */
function largest({ launches, fullest, size }) {
  const { names } = launches[fullest];
  if (names.length <= NAMED) return names;
  const first = [...names].sort((one, other) => size[other] - size[one]).slice(0, NAMED - 1);
  return [...first, `${names.length - first.length} no larger`];
}

/** What the page shows, as sentences. */
export function words(state, found) {
  const { chain, card, now, open } = found;
  // A page keeps an object’s names in order of the alphabet.
  const shape = state.names.map((name) => `${name} ${state.sizes[name]}`).join(", ");
  const of = shape ? ` (${shape}; ${state.dtype})` : "";
  const all = found.closed.some((shut) => shut)
    ? `; with every joint open it is ${many(open.launches.length, "launch")} and ${bytes(open.moved)}`
    : "";
  const said = [`${chain.label}${of}: ${many(chain.steps.length, "step")} in ` +
    `${many(now.launches.length, "launch")}, which move ${bytes(now.moved)}${all}.`];
  const alive = largest(now);
  said.push(`Most memory, ${bytes(now.memory)}, is taken in launch ${now.fullest + 1}, where ` +
    `${listed(alive)} ${verb(alive, "is", "are")} alive.`);
  if (!card) {
    said.push(state.card ? `The card “${state.card}” is unknown: no ceilings of it are at hand, ` +
      "so its time can’t be told." : "No card is known, so no time can be told.");
  } else if (now.timeUs === null) {
    said.push(`No ${now.lacks} peak of ${card.name} is at hand, so its time can’t be told.`);
  } else {
    const parts = [["memory", "wait for bytes"], ["compute", "wait for arithmetic"]]
      .map(([bound, what]) => [sum(now.launches.filter((one) => one.bound === bound)
        .map((one) => one.timeUs)), what])
      .filter(([us]) => us > 0).map(([us, what]) => `${duration(us)} ${what}`);
    parts.push(`${duration(now.launches.length * card.launch_us)} are the launches themselves`);
    const apart = all && ` With every joint open it would be ${duration(open.timeUs)}.`;
    said.push(`On ${card.name} it takes at least ${duration(now.timeUs)}: ${listed(parts)}.${apart}`);
    if (now.hostUs > now.deviceUs) {
      said.push(`Python, with ${duration(card.host_us)} for a launch, can’t keep up: the card ` +
        `would need ${duration(now.deviceUs)}.`);
    }
  }
  return said;
}

/** What a change of one joint did, in words; `found` is from before it. */
export function changed(chain, joint, shut, found) {
  const one = found.joints[joint];
  const names = `${chain.steps[joint].name} and ${chain.steps[joint + 1].name}`;
  const [after, before] = [one.other.memory, found.now.memory];
  const memory = after === before ? "" : ` Memory ${after < before ? "falls" : "rises"} by ` +
    `${bytes(Math.abs(after - before))}.`;
  return `${names} are ${shut ? "one launch" : "two launches"} now: ${savings(one)} ` +
    `${shut ? "less" : "more"}.${memory}`;
}

/** The times as bars, `width` px wide: height and shapes, each [tag, attributes, text]. */
export function timeChart(found, width) {
  const rows = [["all open", found.open], ["now", found.now], ["most closed", found.most]]
    .filter(([, one]) => one.timeUs !== null);
  const [left, high, step] = [84, 20, 27];
  const shapes = [];
  if (!rows.length) return { height: 0, shapes };
  const longest = Math.max(...rows.map(([, one]) => one.timeUs));
  const right = width - 74;
  const scale = (right - left) / longest;
  const add = (tag, attributes, text = "") => shapes.push([tag, attributes, text]);
  rows.forEach(([name, one], row) => {
    const y = 4 + row * step;
    const own = row === 1 ? "own" : "";
    add("text", { x: left - 6, y: y + 15, "text-anchor": "end", class: own }, name);
    let x = left;
    one.launches.forEach((launch, number) => {
      const [gap, work] = [found.card.launch_us * scale, launch.timeUs * scale];
      add("rect", { x, y, width: gap, height: high, class: "gap" });
      add("rect", { x: x + gap, y, width: work, height: high, class: launch.bound });
      if (row === 1 && gap + work > 16) {
        add("text", { x: x + gap + work / 2, y: y + 14.5, "text-anchor": "middle",
          class: "number" }, String(number + 1));
      }
      x += gap + work;
      add("line", { x1: x, x2: x, y1: y, y2: y + high, class: "cut" });
    });
    if (one.hostUs > one.deviceUs) {
      add("rect", { x, y, width: (one.hostUs - one.deviceUs) * scale, height: high, class: "gap" });
      x = left + one.hostUs * scale;
    }
    add("text", { x: x + 6, y: y + 15, class: own }, duration(one.timeUs));
  });
  return { height: 4 + rows.length * step, shapes };
}
