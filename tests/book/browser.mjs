// Opens pages in a headless browser and tells what it saw, for tests/book/test_pages.py.
//
// The argument is JSON: {playwright, axe, chromium}. Each line of standard input is a page to open,
// {url, theme, widths, axe, actions}: `axe` has the widths to run it at; an action is [kind,
// selector, value], its answer in `values`. With `shots`, a path's beginning, it takes pictures; with
// `pdf`, a path, it prints.
// Each line of standard output is what was seen of one page, or {error}, with the `number` that it
// was asked by. The browser starts once, and pages are opened one after the other in its tabs, each a
// profile of its own, emptied in between; a page that is acted on has a new one. Pages that are asked
// together are open together, since a page waits for half of its time. It ends with standard input.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { axeFaults } from "./accessible.mjs";
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
    const out = box.right > width + 1 && box.left < width && box.width > 1 && box.height > 1;
    if (out && element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && !held(element)) {
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
  await page.emulateMedia({ media: "print" });
  await page.setViewportSize({ width: 688, height: 900 });
  const event = (name) => page.evaluate((told) => dispatchEvent(new Event(told)), name);
  const folds = () => page.evaluate(() => document.querySelectorAll(".bd-article details[open]").length);
  const before = await folds();
  await event("beforeprint");
  const lost = await page.evaluate(lostOnPaper);
  await event("afterprint");
  await page.emulateMedia({ media: null });
  const shown = await page.evaluate(() => document.documentElement.dataset.theme);
  if (shown !== theme || (await folds()) !== before) lost.push(`left ${shown}, ${await folds()} folds open`);
  return lost;
}

async function look({ page, told }, { url, theme, widths, axe = [], actions = [], shots, pdf }) {
  const report = { url, theme, console: [], foreign: [], failed: [], overflow: {}, unreadable: {}, axe: {}, values: [] };
  told.report = report;
  await page.setViewportSize({ width: widths[0], height: 900 });
  await page.goto(url, { waitUntil: "load" });
  await page.evaluate(() => window.MathJax?.startup?.promise);
  await page.waitForLoadState("networkidle");
  report.shown_theme = await page.evaluate(() => document.documentElement.dataset.theme);
  for (const width of widths) {
    await page.setViewportSize({ width, height: 900 });
    await page.evaluate(settled);
    report.overflow[width] = await page.evaluate(overflowing);
    report.unreadable[width] = await unreadable(page, width);
    if (axe.includes(width)) report.axe[width] = await axeFaults(page, axeSource, theme, width === axe[0]);
    if (shots) await page.screenshot({ path: `${shots}-${theme}-${width}.png`, fullPage: true });
  }
  const count = (selector) => page.evaluate((told) => document.querySelectorAll(told).length, selector);
  report.maths = await count("mjx-container");
  report.math_elements = await count(".math");
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

// A tab in a profile of its own, in which pages are opened one after the other. What is seen of a
// page goes into `told.report`.
async function newTab(theme) {
  const context = await browser.newContext({ colorScheme: theme });
  const page = await context.newPage();
  const told = { report: null };
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) told.report.console.push(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => told.report.console.push(`exception: ${error.message}`));
  page.on("requestfailed", (request) => told.report.failed.push(request.url()));
  page.on("response", (response) => { if (response.status() >= 400) told.report.failed.push(`${response.status()} ${response.url()}`); });
  // A request to another host is told, and goes no further.
  await context.route(/^(?!file:|data:|blob:|http:\/\/(localhost|127\.0\.0\.1)[:/])/, (route) => {
    told.report.foreign.push(route.request().url());
    return route.abort();
  });
  return { context, page, told, theme };
}

// Leave a tab as a new one is: nothing stored, nothing shown.
async function cleared(tab) {
  await tab.page.evaluate(() => { localStorage.clear(); sessionStorage.clear(); });
  await tab.context.clearCookies();
  await tab.page.goto("about:blank");
}

// Tabs that wait for a page, by theme. A process that shows the next page has compiled the scripts
// that both load; a new one takes a second. A page that was touched is no page to follow: the mouse
// stays where it was.
const free = { light: [], dark: [] };

async function answer(asked) {
  const tab = (!asked.actions && free[asked.theme].pop()) || (await newTab(asked.theme));
  let seen;
  try {
    seen = await look(tab, asked);
    if (!asked.actions) await cleared(tab);
  } catch (error) {
    seen = { error: error.stack };
  }
  if (seen.error || asked.actions) await tab.context.close();
  else free[asked.theme].push(tab);
  console.log(JSON.stringify({ ...seen, number: asked.number }));
}

const open = [];
for await (const line of createInterface({ input: process.stdin })) open.push(answer(JSON.parse(line)));
await Promise.all(open);
await browser.close();
