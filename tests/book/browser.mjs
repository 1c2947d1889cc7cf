// Opens pages in a headless browser and tells what it saw, for tests/book/test_pages.py.
//
// The argument is JSON: {playwright, axe, chromium}. Each line of standard input is a page to open,
// {url, theme, widths, axe, actions}: `axe` has the widths to run it at; an action is [kind,
// selector, value], its answer in `values`. With `shots`, a path's beginning, it takes pictures; with
// `pdf`, a path, it prints.
// Each line of standard output is what was seen of one page, or {error}, with the `number` that it
// was asked by. The browser starts once, every page in a profile of its own. Pages that are asked
// together are open together, since a page waits for half of its time. It ends with standard input.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { brokenWords, cutFigures, lostOnPaper, paleCaptions, scrolledCode, silentScrolls, smallText } from "./measures.mjs";

const job = JSON.parse(process.argv[2]);
const { chromium } = createRequire(import.meta.url)(job.playwright);
const axeSource = readFileSync(job.axe, "utf8");

// Runs in the page: what sticks out of the window. What scrolls or is clipped inside its own box
// doesn't, and a closed drawer isn't seen.
function overflowing() {
  const width = document.documentElement.clientWidth;
  const told = [];
  if (document.documentElement.scrollWidth > width) {
    told.push(`the page is ${document.documentElement.scrollWidth} px wide`);
  }
  const held = (element) => {
    for (let box = element.parentElement; box && box !== document.body; box = box.parentElement) {
      if (getComputedStyle(box).overflowX !== "visible") return true;
    }
    return false;
  };
  for (const element of document.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect();
    const seen = box.width > 1 && box.height > 1 && element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (seen && box.right > width + 1 && box.left < width && !held(element)) {
      told.push(`${element.tagName.toLowerCase()}.${[...element.classList].join(".")} ends at ${Math.round(box.right)} px`);
    }
  }
  return told;
}

// Runs in the page: text that still holds TeX's delimiters, code apart.
function rawMaths() {
  const walker = document.createTreeWalker(document.querySelector("main") ?? document.body, NodeFilter.SHOW_TEXT);
  const told = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const left = /\\[([]|\$\$|\$\\|\$[A-Za-z][^$\n]*\$/.test(node.data);
    if (left && !node.parentElement.closest("pre, code, script, style, mjx-container, svg")) told.push(node.data.trim());
  }
  return told;
}

// Runs in the page: mark what of the article looks like an element before it, so that its contrast
// is the same. Code and tables have thousands of words in a dozen pairs of colours, and axe takes
// most of its time for their contrast. Of a single letter it never tells; what stands for others is
// longer and in full view, so that axe can't be unsure of it.
function markRepeatedLooks() {
  const article = document.querySelector(".bd-article");
  const edge = article?.getBoundingClientRect().right;
  const seen = new Set();
  const grounds = new Map([[null, ""]]);
  const ground = (element) => {
    if (!grounds.has(element)) {
      const { backgroundColor, backgroundImage, opacity, filter, position, transform } = getComputedStyle(element);
      const own = [backgroundColor, backgroundImage, opacity, filter, position, transform].join();
      grounds.set(element, `${ground(element.parentElement)};${own}`);
    }
    return grounds.get(element);
  };
  for (const element of article?.querySelectorAll("*") ?? []) {
    const text = [...element.childNodes].map((node) => (node.nodeType === Node.TEXT_NODE ? node.data.trim() : "")).join("");
    if (!text) continue;
    const { color, fontSize, fontWeight, textShadow, visibility } = getComputedStyle(element);
    const look = [color, fontSize, fontWeight, textShadow, visibility, ground(element)].join();
    const box = element.getBoundingClientRect();
    if (text.length === 1 || seen.has(look)) element.dataset.looksLikeAnother = "";
    else if (box.width > 1 && box.height > 1 && box.left >= 0 && box.right <= edge) seen.add(look);
  }
}

// Runs in the page. At another width than the first, other drawers and bars are seen, and the same
// article: it is taken out for as long as axe runs.
async function runAxe({ options, first }) {
  const article = first ? null : document.querySelector(".bd-article");
  const place = document.createComment("");
  article?.replaceWith(place);
  window.axe.configure({ rules: [{ id: "color-contrast", selector: ":not([data-looks-like-another])" }] });
  const { violations } = await window.axe.run(document, options);
  if (article) place.replaceWith(article);
  return violations;
}

async function axeFaults(page, theme, first) {
  await page.evaluate(axeSource);
  if (first) await page.evaluate(markRepeatedLooks);
  // A theme changes colours alone: in the dark one, only they are looked at, in half the time.
  const runOnly = theme === "dark" ? ["color-contrast"] : undefined;
  const options = { resultTypes: ["violations"], preload: false, ...(runOnly && { runOnly }) };
  const violations = await page.evaluate(runAxe, { options, first });
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .flatMap(({ id, nodes }) => nodes.map((node) => ({ id, target: node.target.join(" "), html: node.html.slice(0, 200), why: node.failureSummary })));
}

// Runs in the page, until no picture changed its size from one frame to the next: explorers draw
// themselves anew for a width, after the page is laid out for it, and on a busy machine that is late.
async function settled() {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const sizes = () => [...document.querySelectorAll(".bd-article svg[width]")]
    .map((picture) => [picture.getAttribute("width"), picture.clientWidth]).join();
  await frame();
  for (let last = "", frames = 0; frames < 120; frames += 1) {
    await frame();
    const now = sizes();
    if (now === last) return;
    last = now;
  }
}

// What reads badly at this width: on a phone the figures and tables, on a laptop the code.
async function unreadable(page, width) {
  if (width === 1280) return page.evaluate(scrolledCode);
  if (width !== 390) return [];
  const measures = [brokenWords, silentScrolls, cutFigures, paleCaptions];
  const told = [await page.evaluate(smallText, 10)];
  for (const measure of measures) told.push(await page.evaluate(measure));
  return told.flat();
}

// What paper loses of a page, and whether the page is afterwards as it was. `A4` less its margins.
async function onPaper(page, theme) {
  await page.setViewportSize({ width: 688, height: 900 });
  await page.emulateMedia({ media: "print" });
  const event = (name) => page.evaluate((told) => dispatchEvent(new Event(told)), name);
  const folds = () => page.locator(".bd-article details[open]").count();
  const before = await folds();
  await event("beforeprint");
  const lost = await page.evaluate(lostOnPaper);
  await event("afterprint");
  await page.emulateMedia({ media: null });
  const shown = await page.evaluate(() => document.documentElement.dataset.theme);
  if (shown !== theme || (await folds()) !== before) lost.push(`left ${shown}, ${await folds()} folds open`);
  return lost;
}

async function look(context, { url, theme, widths, axe = [], actions = [], shots, pdf }) {
  const page = await context.newPage();
  const report = { url, theme, console: [], foreign: [], failed: [], overflow: {}, unreadable: {}, axe: {}, values: [] };
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) report.console.push(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => report.console.push(`exception: ${error.message}`));
  page.on("requestfailed", (request) => report.failed.push(request.url()));
  page.on("response", (response) => { if (response.status() >= 400) report.failed.push(`${response.status()} ${response.url()}`); });
  // A request to another host is told, and goes no further.
  await context.route(/^(?!file:|data:|blob:|http:\/\/(localhost|127\.0\.0\.1)[:/])/, (route) => {
    report.foreign.push(route.request().url());
    return route.abort();
  });
  await page.goto(url, { waitUntil: "load" });
  await page.evaluate(() => window.MathJax?.startup?.promise);
  await page.waitForLoadState("networkidle");
  report.shown_theme = await page.evaluate(() => document.documentElement.dataset.theme);
  for (const width of widths) {
    await page.setViewportSize({ width, height: 900 });
    await page.evaluate(settled);
    report.overflow[width] = await page.evaluate(overflowing);
    report.unreadable[width] = await unreadable(page, width);
    if (axe.includes(width)) report.axe[width] = await axeFaults(page, theme, width === axe[0]);
    if (shots) await page.screenshot({ path: `${shots}-${theme}-${width}.png`, fullPage: true });
  }
  report.maths = await page.locator("mjx-container").count();
  report.math_elements = await page.locator(".math").count();
  report.raw_maths = await page.evaluate(rawMaths);
  for (const [kind, selector, value] of actions) {
    const element = page.locator(selector).first();
    if (kind === "press") await element.press(value);
    else if (kind === "click") await element.click();
    else if (kind === "fill") await element.fill(value);
    else if (kind === "wait") await element.waitFor({ timeout: 10000 });
    else if (kind === "read") report.values.push(await element.evaluate((node, name) => node[name], value));
    else if (kind === "count") report.values.push(await page.locator(selector).count());
    else throw new Error(`no action ${kind}`);
  }
  report.lost_on_paper = await onPaper(page, theme);
  if (pdf) await page.pdf({ path: pdf, format: "A4", preferCSSPageSize: true });
  return report;
}

const browser = await chromium.launch({
  executablePath: job.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
async function answer(asked) {
  const viewport = { width: asked.widths[0], height: 900 };
  const context = await browser.newContext({ colorScheme: asked.theme, viewport });
  const seen = await look(context, asked).catch((error) => ({ error: error.stack }));
  await context.close();
  console.log(JSON.stringify({ ...seen, number: asked.number }));
}

const open = [];
for await (const line of createInterface({ input: process.stdin })) open.push(answer(JSON.parse(line)));
await Promise.all(open);
await browser.close();
