// Loaded between require.js and the widgets' own script on every page with a widget: all that they
// ask for lies beside this file, over http and from the file system.
(() => {
  const script = document.currentScript;
  const here = new URL(".", script.src).href;
  // A module looks for its fonts where its name says that it lies; one file holds them all.
  requirejs.config({
    baseUrl: here,
    paths: { "@jupyter-widgets/html-manager/dist": "@jupyter-widgets" },
  });
  // Where they look for a module that isn't here; unset, that is a public server.
  script.setAttribute("data-jupyter-widgets-cdn", here);
  // They set maths through MathJax 2's queue; the pages have MathJax 3, whose object is there on load.
  addEventListener("load", () => {
    if (window.MathJax?.typesetPromise) {
      window.MathJax.Hub = { Queue: ([, , element]) => MathJax.typesetPromise([element]) };
    }
  });
})();
