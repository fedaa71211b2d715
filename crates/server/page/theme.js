// Sets the theme before anything is drawn, so that the page does not flash in the wrong one. Not a module for that reason.
"use strict";
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("ropewalk.theme");
  } catch {
    // Without storage the system's theme it is.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
