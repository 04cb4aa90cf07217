"use strict";
const SHOWN = 10; // rows of a table that a screen shows at first
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("th[data-column]")];
  for (const head of heads) {
    const column = head.dataset.column;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const way = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.key;
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        const numeric = a !== "" && b !== "" && !isNaN(a) && !isNaN(b);
        return way * (numeric ? a - b : a.localeCompare(b));
      });
      table.tBodies[0].append(...rows);
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
    });
  }
  const number = table.tBodies[0].rows.length;
  if (number > SHOWN) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fold";
    const fold = (folded) => {
      table.classList.toggle("folded", folded);
      button.setAttribute("aria-expanded", String(!folded));
      button.textContent = folded ? `Show all ${number} rows` : `Show the first ${SHOWN} rows`;
    };
    button.addEventListener("click", () => fold(!table.classList.contains("folded")));
    table.parentNode.after(button);
    fold(true);
  }
}
const experts = document.querySelectorAll("details");
const open = (is) => experts.forEach((one) => (one.open = is));
open(false);
window.addEventListener("beforeprint", () => open(true));
window.addEventListener("afterprint", () => open(false));
