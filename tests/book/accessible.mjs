// What axe finds at fault in a page, told by browser.mjs.

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

// Runs in the page: take out of code what axe has nothing to say of; return what puts it back. Half
// of a page's elements are words of code, without an attribute but their class. In a closed fold axe
// looks at none of them; of those in a row that look like others, only the room they take counts.
function thinCode(folded) {
  const bare = (element) => [...element.attributes].every(({ name }) => ["class", "data-looks-like-another"].includes(name));
  const alike = (node) => node.dataset && "looksLikeAnother" in node.dataset && !node.childElementCount;
  const blank = (node) => node.nodeType === Node.TEXT_NODE && !node.data.trim();
  const thinned = [...document.querySelectorAll(".bd-article pre")]
    .filter((box) => Boolean(box.closest("details:not([open])")) === folded && [...box.querySelectorAll("*")].every(bare))
    .map((box) => [box, [...box.childNodes]]);
  for (const [box, nodes] of thinned) {
    box.replaceChildren();
    let row = null;
    for (const node of folded ? [] : nodes) {
      const joins = alike(node) || (row && blank(node));
      if (joins && !row) {
        row = document.createElement("span");
        row.dataset.looksLikeAnother = "";
        box.append(row);
      }
      if (joins) row.append(node.textContent);
      else {
        row = null;
        box.append(node);
      }
    }
  }
  return () => thinned.forEach(([box, nodes]) => box.replaceChildren(...nodes));
}

// Runs in the page. At another width than the first, other drawers and bars are seen, and the same
// article: it is taken out for as long as axe runs.
async function runAxe({ options, first }) {
  const back = [];
  if (first) {
    back.push(window.thinCode(true));
    window.markRepeatedLooks();
    back.push(window.thinCode(false));
  } else {
    const article = document.querySelector(".bd-article");
    const place = document.createComment("");
    article?.replaceWith(place);
    if (article) back.push(() => place.replaceWith(article));
  }
  window.axe.configure({ rules: [{ id: "color-contrast", selector: ":not([data-looks-like-another])" }] });
  const { violations } = await window.axe.run(document, options);
  back.forEach((put) => put());
  return violations;
}

// What is at fault, of what is serious, in a page of a theme, at the first width or another.
export async function axeFaults(page, axeSource, theme, first) {
  if (first) await page.evaluate(`${axeSource}\n;Object.assign(window, { markRepeatedLooks: ${markRepeatedLooks}, thinCode: ${thinCode} }), null`);
  // A theme changes colours alone: in the dark one, only they are looked at, in half the time.
  const runOnly = theme === "dark" ? ["color-contrast"] : undefined;
  const options = { resultTypes: ["violations"], preload: false, ...(runOnly && { runOnly }) };
  const violations = await page.evaluate(runAxe, { options, first });
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .flatMap(({ id, nodes }) => nodes.map((node) => ({ id, target: node.target.join(" "), html: node.html.slice(0, 200), why: node.failureSummary })));
}
