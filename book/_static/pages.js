// A page opened from the file system may not read another: search without excerpts there.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Elsewhere an excerpt is plain text, and TeX's delimiters would stand in it.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const htmlToText = Search.htmlToText;
  Search.htmlToText = (...page) => htmlToText.apply(Search, page).replaceAll(/\\[()[\]]/g, "");
});

// A box that scrolls sideways tells pages.css on which side there is more.
function tellMore(box) {
  const scrolls = getComputedStyle(box).overflowX !== "visible";
  const left = scrolls && box.scrollLeft > 1;
  const right = scrolls && box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
  if (left || right) box.dataset.more = left && right ? "both" : left ? "left" : "right";
  else delete box.dataset.more;
  if (box.closest("figure") && !box.hasAttribute("tabindex") && right) {
    box.tabIndex = 0; // the theme does so for tables and code
    box.role = "region";
    box.ariaLabel = "Figure that scrolls sideways";
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector(".bd-article");
  if (!article) return;
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => tellMore(target)));
  const watched = new WeakSet();
  const watch = () => {
    for (const box of article.querySelectorAll(".pst-scrollable-table-container, pre, figure, figure > div")) {
      if (watched.has(box)) continue;
      watched.add(box);
      box.addEventListener("scroll", () => tellMore(box), { passive: true });
      resized.observe(box);
    }
  };
  watch();
  new MutationObserver(watch).observe(article, { childList: true, subtree: true }); // widgets come later
});

// Paper gets the light theme, with every fold open; afterwards the page is as it was.
let restore = () => {};
addEventListener("beforeprint", () => {
  const root = document.documentElement;
  const { theme } = root.dataset;
  const closed = [...document.querySelectorAll(".bd-article details:not([open])")];
  for (const fold of closed) fold.open = true;
  root.dataset.theme = "light";
  restore = () => {
    for (const fold of closed) fold.open = false;
    root.dataset.theme = theme;
  };
});
addEventListener("afterprint", () => restore());
