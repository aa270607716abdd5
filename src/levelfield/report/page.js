"use strict";
(() => {
  const root = document.documentElement, all = (rule, inside = document) => [...inside.querySelectorAll(rule)];
  const said = document.getElementById("said");

  // Light, dark, or as the reader's system prefers.
  const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; });
  document.getElementById("print").addEventListener("click", () => print());
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

  const words = place => (place.querySelector(".score") ?? place).textContent.replace(/\s+/g, " ").trim();
  const heads = table => all("thead th", table).map(each => each.dataset.name);
  const bodies = table => [...table.tBodies].map(body => ({
    group: words(body.querySelector(".group th")), rows: all("tr:not(.group)", body).map(row => [...row.children].map(words)),
  }));
  const writers = {
    markdown(table) {
      const line = cells => `| ${cells.map(each => each.replaceAll("|", "\\|")).join(" | ")} |`;
      const names = heads(table);
      return bodies(table).map(({ group, rows }) => [
        line([group, ...names.slice(1)]), line(names.map((_, column) => column ? "---:" : "---")), ...rows.map(line),
      ].join("\n")).join("\n\n") + "\n";
    },
    latex(table) {
      const escaped = text => text.replace(/[\\&%$#_{}~^]/g, sign => ({ "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" })[sign] ?? `\\${sign}`)
        .replaceAll("±", "$\\pm$");
      const line = cells => cells.map(escaped).join(" & ") + " \\\\";
      const names = heads(table);
      const groups = bodies(table).map(({ group, rows }) => [`\\multicolumn{${names.length}}{l}{\\textbf{${escaped(group)}}} \\\\`, ...rows.map(line)].join("\n"));
      return [`\\begin{tabular}{l${"r".repeat(names.length - 1)}}`, "\\toprule", line(["method", ...names.slice(1)]), "\\midrule",
        groups.join("\n\\midrule\n"), "\\bottomrule", "\\end{tabular}", ""].join("\n");
    },
  };
  async function copy(text) {
    try { await navigator.clipboard.writeText(text); return; } catch { /* a page from a file may not, in some browsers */ }
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  for (const button of all("button[data-copy]")) {
    button.addEventListener("click", async () => {
      await copy(writers[button.dataset.copy](document.getElementById("scores-table")));
      said.textContent = `the table is copied as ${button.textContent.replace("Copy as ", "")}`;
    });
  }
})();
