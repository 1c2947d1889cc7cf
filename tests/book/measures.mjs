// What browser.mjs measures of a page. Each function runs in the page, alone, and returns what is at
// fault, in words.

// Code that a reader must scroll sideways, folds opened.
export function scrolledCode() {
  const closed = [...document.querySelectorAll(".bd-article details:not([open])")];
  for (const fold of closed) fold.open = true;
  const told = [...document.querySelectorAll(".bd-article pre")]
    .filter((box) => box.scrollWidth > box.clientWidth)
    .map((box) => `${box.scrollWidth} px of code in ${box.clientWidth}: ${box.innerText.slice(0, 60)}`);
  for (const fold of closed) fold.open = false;
  return told;
}

// Text in figures that is shown in less than `least` pixels: letters of live pictures, and of
// pictures in the page's text, which matplotlib draws as paths 100 units high.
export function smallText(least) {
  const told = [];
  const tell = (size, what) => {
    if (size < least - 0.01) told.push(`${size.toFixed(1)} px: ${what}`);
  };
  for (const text of document.querySelectorAll(".bd-article svg text")) {
    const { a, b } = text.getScreenCTM();
    const shown = text.textContent.trim() && text.checkVisibility();
    if (shown) tell(parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b), text.textContent);
  }
  for (const image of document.querySelectorAll('.bd-article img[src^="data:image/svg"]')) {
    if (!image.checkVisibility()) continue;
    const drawn = new DOMParser().parseFromString(atob(image.src.split(",")[1]), "image/svg+xml");
    const pixels = image.clientWidth / drawn.documentElement.viewBox.baseVal.width;
    for (const glyph of drawn.querySelectorAll("use")) {
      let size = 100 * pixels;
      let letters = false;
      for (let at = glyph; at.getAttribute; at = at.parentNode) {
        const scaled = /scale\(([\d.]+)( -)?/.exec(at.getAttribute("transform") ?? "");
        if (scaled) size *= Number(scaled[1]);
        letters ||= Boolean(scaled?.[2]);
      }
      if (letters) tell(size, image.alt.slice(0, 60));
    }
  }
  return [...new Set(told)];
}

// Names that break inside a word, in tables.
export function brokenWords() {
  const told = [];
  const range = document.createRange();
  for (const cell of document.querySelectorAll(".bd-article :is(td, th)")) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (node.parentElement.closest("mjx-container")) continue;
      for (const word of node.data.matchAll(/[^\s\-–—/]+/g)) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
        if (lines.size > 1) told.push(word[0]);
      }
    }
  }
  return told;
}

// Tables and figures that scroll and don't show it.
export function silentScrolls() {
  const boxes = document.querySelectorAll(".bd-article :is(.pst-scrollable-table-container, figure, figure > div)");
  return [...boxes]
    .filter((box) => box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible")
    .filter((box) => box.checkVisibility()) // not in a closed fold
    .filter((box) => getComputedStyle(box).maskImage === "none" || box.tabIndex < 0)
    .map((box) => `${box.scrollWidth} px in ${box.clientWidth}: ${box.innerText.slice(0, 60)}`);
}

// Figures that a box cuts on the left, where no scrolling leads, or on the right in silence.
export function cutFigures() {
  const told = [];
  for (const picture of document.querySelectorAll(".bd-article figure :is(img, svg)")) {
    if (!picture.checkVisibility()) continue;
    let inner = picture.getBoundingClientRect();
    for (let box = picture.parentElement; box !== document.body; box = box.parentElement) {
      const { overflowX, maskImage } = getComputedStyle(box);
      if (overflowX === "visible") continue;
      const outer = box.getBoundingClientRect();
      const cut = inner.left < outer.left - 1 || (inner.right > outer.right + 1 && maskImage === "none");
      if (cut) told.push(`${box.className} cuts ${(picture.alt ?? picture.textContent).trim().slice(0, 60)}`);
      inner = outer;
    }
  }
  return told;
}

// Captions that are thin, or too pale on what they stand on.
export function paleCaptions() {
  const parts = (color) => color.match(/[\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = parts(color).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const told = [];
  for (const caption of document.querySelectorAll(".bd-article figcaption")) {
    let ground = caption;
    while (ground.parentElement && parts(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
    const { color, fontWeight } = getComputedStyle(caption);
    const [dark, bright] = [light(color), light(getComputedStyle(ground).backgroundColor)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < 4.5 || fontWeight < 400) told.push(`contrast ${contrast.toFixed(1)}, weight ${fontWeight}: ${caption.innerText.slice(0, 60)}`);
  }
  return told;
}

// What paper would lose: what sticks out of its width or is cut by its own box, and closed folds.
// Runs with the media of print, after `beforeprint`.
export function lostOnPaper() {
  const told = [...document.querySelectorAll(".bd-article details:not([open])")].map((fold) => `closed: ${fold.innerText.slice(0, 60)}`);
  if (document.documentElement.dataset.theme !== "light") told.push("dark paper");
  for (const element of document.querySelectorAll(".bd-article *")) {
    const box = element.getBoundingClientRect();
    if (box.width <= 1 || !element.checkVisibility() || element.closest("mjx-assistive-mml")) continue;
    const { overflowX, maskImage } = getComputedStyle(element);
    const smaller = overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1;
    const cut = (smaller && !element.closest("mjx-container")) || maskImage !== "none"; // it cuts brackets
    const name = `${element.tagName.toLowerCase()}.${[...element.classList].join(".")}`;
    if (box.right > document.documentElement.clientWidth + 1) told.push(`${name} ends at ${Math.round(box.right)} px`);
    else if (cut) told.push(`${name} is cut: ${element.scrollWidth} px in ${element.clientWidth}`);
  }
  return told;
}
