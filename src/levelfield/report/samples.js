"use strict";
(() => {
  // Retrieved neighbours, confused classes and the map, drawn from the values that the page holds.
  const given = document.getElementById("samples");
  if (!given) return;
  const { kind, methods, shown, classes, labels, texts, gallery, confusions, map } = JSON.parse(given.textContent);
  const className = sample => classes[labels[sample]];
  function make(tag, attributes = {}, ...inside) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  }
  const picture = (sample, said) => kind === "text"
    ? make("span", { class: "words" }, texts[sample])
    : make("span", { class: `picture s${sample}`, role: "img", "aria-label": said, title: said });

  // A method's answers: right and wrong by shape, word and colour.
  function answers(method, query, found) {
    const right = found.filter(each => labels[each] === labels[query]).length;
    const list = make("ol", { class: `strip ${kind}` }, ...found.map(each => {
      const hit = labels[each] === labels[query], name = className(each);
      return make("li", { class: hit ? "hit" : "miss" }, picture(each, `${hit ? "right" : "wrong"}: ${name}`),
        make("span", { class: "mark", title: name }, hit ? "✓" : "✗", make("span", { class: "aside" }, hit && kind === "image" ? "" : ` ${name}`)));
    }));
    return [make("p", { class: "label" }, make("b", {}, method), ` ${right} of ${found.length} right`), list];
  }
  const asked = (sample, ...said) => make("div", { class: `asked ${kind}` }, picture(sample, `query: ${className(sample)}`),
    make("p", {}, make("b", {}, className(sample)), ...said));

  const place = document.getElementById("gallery"), pickers = [...document.querySelectorAll("select[data-row]")];
  function drawGallery() {
    const rows = [...new Set([...pickers.map(each => each.value), shown.at(-1)])];
    place.replaceChildren();
    for (const group of ["best", "median", "worst"]) {
      const queries = gallery.filter(each => each.group === group);
      if (!queries.length) continue;
      place.append(make("h3", {}, { best: "Best queries", median: "Median queries", worst: "Worst queries" }[group]));
      for (const query of queries) {
        place.append(make("div", { class: "query" }, asked(query.sample, make("br"), `MAP@R ${query.score.toFixed(1)}`),
          make("div", { class: "rows" }, ...rows.flatMap(method => answers(method, query.sample, query.neighbours[method])))));
      }
    }
  }
  if (place) {
    pickers.forEach((each, row) => {
      each.append(...methods.map(method => make("option", {}, method)));
      each.value = shown[Math.min(row, shown.length - 1)];
      each.addEventListener("change", drawGallery);
    });
    drawGallery();
  }

  const confused = document.getElementById("confusions");
  for (const pair of confused ? confusions : []) {
    const [a, b] = pair.classes.map(label => classes[label]);
    const counts = shown.map(method => `${method} ${pair.counts[method]}`).join(", ");
    confused.append(make("div", { class: "pair" },
      make("h3", {}, `${a} and ${b}`), make("p", { class: "label" }, `of ${pair.queries} queries find the other first: ${counts}`),
      make("ul", { class: `couples ${kind}` }, ...pair.examples.map(([query, found]) => make("li", {},
        picture(query, `query: ${className(query)}`), make("span", { class: "arrow" }, "→ ✗"), picture(found, `found: ${className(found)}`))))));
  }

  // The map: a point a sample; the same sample and its class are marked in both.
  const SVG = "http://www.w3.org/2000/svg", tip = document.getElementById("tip"), maps = [...document.querySelectorAll("svg[data-map]")];
  const shapes = ["M-9 0a9 9 0 1 0 18 0a9 9 0 1 0-18 0z", "M-8-8h16v16h-16z", "M0-11L10 8H-10z", "M0-11L11 0L0 11L-11 0z",
    "M-10-8H10L0 11z", "M-3-10h6v7h7v6h-7v7h-6v-7h-7v-6h7z", "M-10-6L-6-10L0-4L6-10L10-6L4 0L10 6L6 10L0 4L-6 10L-10 6L-4 0z", "M0-11L10-3L6 9H-6L-10-3z"];
  const order = Object.keys(classes).map(Number), looks = label => map.few ? order.indexOf(label) % shapes.length : 0;
  const point = (x, y, look) => {
    const made = document.createElementNS(SVG, "path");
    made.setAttribute("d", shapes[look]);
    made.setAttribute("transform", `translate(${x} ${y})`);
    return made;
  };
  const drawn = maps.map(svg => map.points[svg.dataset.map].map(([x, y], index) => {
    const made = point(x, y, looks(labels[map.samples[index]]));
    made.dataset.index = index;
    if (map.few) made.classList.add(`c${looks(labels[map.samples[index]])}`);
    svg.append(made);
    return made;
  }));
  let marked = null;
  function mark(index, svg) {
    for (const points of drawn) for (const each of points) each.classList.remove("same", "here");
    marked = index;
    tip.hidden = index === null;
    if (index === null) return;
    const sample = map.samples[index], label = labels[sample];
    for (const points of drawn) {
      points.forEach((each, other) => each.classList.toggle("same", labels[map.samples[other]] === label));
      points[index].classList.add("here");
      points[index].parentNode.append(points[index]);
    }
    tip.replaceChildren(...(kind === "text" && !(sample in texts) ? [] : [picture(sample, className(sample))]), make("span", {}, className(sample)));
    const box = drawn[maps.indexOf(svg)][index].getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left + 14, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.bottom + tip.offsetHeight + 10 > innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
  }
  const turns = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  maps.forEach(svg => {
    const points = map.points[svg.dataset.map];
    svg.addEventListener("pointermove", event => {
      const index = event.target.dataset?.index;
      if (index !== undefined) mark(Number(index), svg);
    });
    svg.addEventListener("pointerdown", event => { if (event.target === svg) mark(null); });
    svg.addEventListener("pointerleave", () => mark(null));
    svg.addEventListener("blur", () => mark(null));
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) mark(marked ?? 0, svg); });
    svg.addEventListener("keydown", event => {
      if (event.key === "Escape") mark(null);
      if (!(event.key in turns)) return;
      event.preventDefault();
      const [dx, dy] = turns[event.key], [x, y] = points[marked ?? 0];
      let best = null, least = Infinity;
      points.forEach(([u, v], index) => {
        const along = (u - x) * dx + (v - y) * dy, across = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
        if (index !== marked && along > 0 && across <= along && along + across < least) [best, least] = [index, along + across];
      });
      if (best !== null) mark(best, svg);
    });
  });
  addEventListener("scroll", () => { if (marked !== null && !document.activeElement?.dataset.map) mark(null); }, { passive: true });

  const legend = document.getElementById("legend");
  if (legend && map.few) legend.append(...order.map(label => {
    const svg = document.createElementNS(SVG, "svg"), sign = point(14, 14, looks(label));
    svg.setAttribute("viewBox", "0 0 28 28");
    svg.setAttribute("aria-hidden", "true");
    sign.classList.add(`c${looks(label)}`);
    svg.append(sign);
    return make("li", {}, svg, classes[label]);
  }));
})();
