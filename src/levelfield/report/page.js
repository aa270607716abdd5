"use strict";
(() => {
  const all = (rule, inside = document) => [...inside.querySelectorAll(rule)];
  const said = document.getElementById("said");

  // On paper nothing is folded away, and every image is there.
  addEventListener("beforeprint", () => all("img").forEach(each => { each.loading = "eager"; }));
  addEventListener("beforeprint", () => all("details:not([open])").forEach(each => { each.open = true; each.dataset.shut = ""; }));
  addEventListener("afterprint", () => all("details[data-shut]").forEach(each => { each.open = false; delete each.dataset.shut; }));

  // The table: a heading sorts each group of its rows; without a score comes last.
  const cell = (row, column) => row.children[column];
  const number = (row, column) => parseFloat(cell(row, column).dataset.value ?? "NaN");
  function sort(table, heading) {
    const column = [...heading.parentNode.children].indexOf(heading), isText = column === 0;
    const before = heading.getAttribute("aria-sort"), down = isText ? before === "ascending" : before !== "descending";
    all("thead th", table).forEach(each => each.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    for (const body of table.tBodies) {
      const rows = all("tr:not(.group)", body);
      rows.sort((a, b) => isText
        ? sign * cell(a, 0).textContent.trim().localeCompare(cell(b, 0).textContent.trim(), "en")
        : isNaN(number(a, column)) - isNaN(number(b, column)) || sign * (number(a, column) - number(b, column)) || 0);
      body.append(...rows);
    }
    said.textContent = `sorted by ${heading.dataset.name}, ${down ? "descending" : "ascending"}`;
  }
  for (const heading of all(".scores thead th")) {
    heading.querySelector("button").addEventListener("click", () => sort(heading.closest("table"), heading));
  }
})();
