// A page opened from the file system may not read another: search without excerpts there.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Elsewhere an excerpt is plain text, and TeX's delimiters would stand in it.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const htmlToText = Search.htmlToText;
  Search.htmlToText = (...page) => htmlToText.apply(Search, page).replaceAll(/\\[()[\]]/g, "");
});
