"use strict";
(() => {
  // Retrieved neighbours and confused classes, drawn from the values that the page holds.
  const given = document.getElementById("samples");
  if (!given) return;
  const { kind, methods, shown, names, classes, labels, texts, gallery, confusions } = JSON.parse(given.textContent);
  const className = sample => classes[labels[sample]];
  function make(tag, attributes = {}, ...inside) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  }
  const thumb = (sample, name) => kind === "text"
    ? make("span", { class: "words" }, texts[sample])
    : make("span", { class: `thumb s${sample}`, role: "img", "aria-label": name, title: name });

  // A method's answers: right and wrong by shape, word and colour.
  function answers(method, query, found) {
    const right = found.filter(each => labels[each] === labels[query]).length;
    const list = make("ol", { class: `strip ${kind}` }, ...found.map(each => {
      const hit = labels[each] === labels[query], name = className(each);
      return make("li", { class: hit ? "hit" : "miss" }, thumb(each, `${hit ? "right" : "wrong"}: ${name}`),
        make("span", { class: "mark", title: name }, hit ? "✓" : "✗", make("span", { class: "aside" }, hit && kind === "image" ? "" : ` ${name}`)));
    }));
    return [make("p", { class: "label" }, make("b", {}, names[method]), ` ${right} of ${found.length} right`), list];
  }
  const queried = (sample, ...more) => make("div", { class: `queried ${kind}` }, thumb(sample, `query: ${className(sample)}`),
    make("p", {}, make("b", {}, className(sample)), ...more));

  const place = document.getElementById("gallery"), pickers = [...document.querySelectorAll("select[data-row]")];
  function drawGallery() {
    const rows = [...new Set([...pickers.map(each => each.value), shown.at(-1)])];
    place.replaceChildren();
    for (const group of ["best", "median", "worst"]) {
      const queries = gallery.filter(each => each.group === group);
      if (!queries.length) continue;
      place.append(make("h3", {}, { best: "Best queries", median: "Median queries", worst: "Worst queries" }[group]));
      for (const query of queries) {
        place.append(make("div", { class: "query" }, queried(query.sample, make("br"), `MAP@R ${query.score.toFixed(1)}`),
          make("div", { class: "rows" }, ...rows.flatMap(method => answers(method, query.sample, query.neighbours[method])))));
      }
    }
  }
  if (place) {
    pickers.forEach((each, row) => {
      each.append(...methods.map(method => make("option", { value: method }, names[method])));
      each.value = shown[Math.min(row, shown.length - 1)];
      each.addEventListener("change", drawGallery);
    });
    drawGallery();
  }

  const confused = document.getElementById("confusions");
  for (const pair of confused ? confusions : []) {
    const [a, b] = pair.classes.map(label => classes[label]);
    const counts = shown.map(method => `${names[method]} ${pair.counts[method]}`).join(", ");
    confused.append(make("div", { class: "pair" },
      make("h3", {}, `${a} and ${b}`), make("p", { class: "label" }, `of ${pair.queries} queries find the other first: ${counts}`),
      make("ul", { class: `couples ${kind}` }, ...pair.examples.map(([query, found]) => make("li", {},
        thumb(query, `query: ${className(query)}`), make("span", { class: "arrow" }, "→ ✗"), thumb(found, `found: ${className(found)}`))))));
  }
})();
