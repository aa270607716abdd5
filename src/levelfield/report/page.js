"use strict";
(() => {
  const all = (rule, inside = document) => [...inside.querySelectorAll(rule)];

  // On paper nothing is folded.
  addEventListener("beforeprint", () => all("details:not([open])").forEach(each => { each.open = true; each.dataset.shut = ""; }));
  addEventListener("afterprint", () => all("details[data-shut]").forEach(each => { each.open = false; delete each.dataset.shut; }));

  // A heading of a table of scores sorts each group of rows; rows without a score come last.
  const number = (row, column) => parseFloat(row.children[column].dataset.value ?? "NaN");
  function sort(table, heading) {
    const column = [...heading.parentNode.children].indexOf(heading), isText = column === 0;
    const before = heading.getAttribute("aria-sort"), down = isText ? before === "ascending" : before !== "descending";
    all("thead th", table).forEach(each => each.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    for (const body of table.tBodies) {
      const rows = all("tr:not(.group)", body);
      rows.sort((a, b) => isText
        ? sign * a.children[0].textContent.localeCompare(b.children[0].textContent, "en")
        : isNaN(number(a, column)) - isNaN(number(b, column)) || sign * (number(a, column) - number(b, column)) || 0);
      body.append(...rows);
    }
    document.getElementById("sorted").textContent = `sorted by ${heading.querySelector("button").textContent}`;
  }
  for (const heading of all(".scores thead th")) {
    heading.querySelector("button").addEventListener("click", () => sort(heading.closest("table"), heading));
  }
})();
