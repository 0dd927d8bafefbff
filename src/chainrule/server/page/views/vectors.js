/** Vectors: the neighbours of a word or of an analogy, and a map of words or texts in two dimensions. */

import { el, show, svg } from "../core/dom.js";
import { noteFor } from "../core/save.js";
import { emptyView, field, runMenu, submitButton } from "../parts/controls.js";
import { countText, pieceText } from "../parts/figures.js";

export const words = {
  en: {
    how: "Train word vectors: chainrule train TEXT --model word2vec.",
    query: "Word, or analogy as in king - man + woman",
    texts: "Texts for the map, one per line (instead of words)",
    go: "Show",
    neighbours: "Nearest words",
    cosine: "The number is the cosine with the query. Choose a word to go on from it.",
    frequent: "No word is given: the map shows the first words of the vocabulary.",
    vocabulary: "{count} words have a vector.",
    map: "Map",
    mapHint: "The first two principal components: they show {x}% and {y}% of the variance, and no more. Choose a point to go on from it.",
    point: "{label} at {x}, {y}",
    few: "A map needs at least 3 words.",
    ofTexts: "The vectors of texts are the means of those of their tokens.",
  },
  zh: {
    how: "请训练词向量：chainrule train TEXT --model word2vec。",
    query: "词，或类比，如 king - man + woman",
    texts: "用于地图的文本，每行一个（代替词）",
    go: "显示",
    neighbours: "最近的词",
    cosine: "数字是与查询的余弦。选择一个词，从它继续。",
    frequent: "未给出词：地图显示词表中最前面的词。",
    vocabulary: "{count} 个词有向量。",
    map: "地图",
    mapHint: "前两个主成分：分别只显示 {x}% 和 {y}% 的方差。选择一个点，从它继续。",
    point: "{label}，位于 {x}，{y}",
    few: "地图至少需要 3 个词。",
    ofTexts: "文本的向量是其词元向量的平均。",
  },
};

const SIZE = { width: 760, height: 520, pad: 34 };

/** "king - man + woman" -> the words to add and to subtract. */
export function parseQuery(text) {
  const parts = text.trim().split(/\s+/).filter(Boolean);
  const found = { positive: [], negative: [] };
  let side = "positive";
  for (const part of parts) {
    if (part === "+") side = "positive";
    else if (part === "-" || part === "−") side = "negative";
    else {
      found[side].push(part);
      side = "positive";
    }
  }
  return found;
}

export function mount(root, context) {
  const { t, values, keep } = context;
  const runs = context.runs.filter((one) => one.words);
  if (!runs.length) {
    show(root, emptyView(context, t("how")));
    return;
  }
  const known = runs.find((one) => one.name === values.run) ?? runs.find((one) => one.task === "vectors") ?? runs[0];
  const submit = () => {
    keep({ word: query.value.trim(), texts: texts.value.trim() }, { push: true });
    look();
  };
  const query = el("input", { type: "text", value: values.word ?? "", "data-role": "query", spellcheck: "false", autocomplete: "off", on: {
    keydown: (event) => {
      if (event.key === "Enter") submit();
    },
  } });
  const texts = el("textarea", { rows: 4, value: values.texts ?? "", "data-role": "texts" });
  const menu = runMenu(context, runs, known.name, (run) => context.go("vectors", { ...context.values, run }));
  const result = el("div", { class: "result" });
  const more = el("details", { "data-live": true }, el("summary", {}, t("texts")), el("label", { class: "field" }, el("span", {}, t("texts")), texts));
  more.open = Boolean(values.texts);
  show(root, el("div", { class: "card" }, el("div", { class: "row end" }, menu, field(t("query"), query, "grow"), submitButton(context, submit, t("go"))), more), result);
  const goTo = (word) => {
    query.value = word;
    texts.value = "";
    submit();
    query.focus();
  };

  async function look() {
    const lines = texts.value.split("\n").map((line) => line.trim()).filter(Boolean);
    const asked = lines.length ? { texts: lines } : { ...parseQuery(query.value), top: query.value.trim() ? 30 : 120 };
    const found = await context.run((signal) => context.api.post("page/api/vectors", { model: known.name, ...asked }, signal));
    if (found) draw(result, context, found, parseQuery(query.value), goTo, lines.length > 0);
  }
  look();
}

function draw(result, context, found, query, goTo, ofTexts) {
  const { t, language } = context;
  const list = found.neighbours.length ? neighbours(context, found.neighbours, goTo) : el("p", { class: "muted" }, t(ofTexts ? "ofTexts" : "frequent"));
  const side = el("section", { class: "card" }, el("h2", {}, t("neighbours")), list,
    found.vocabulary ? el("p", { class: "muted" }, t("vocabulary", { count: countText(found.vocabulary, language) })) : null);
  const chart = found.map ? mapOf(context, found.map, query, ofTexts ? null : goTo) : el("p", { class: "empty" }, t("few"));
  show(result, el("div", { class: "vectors-split" }, el("section", { class: "card" }, el("h2", {}, t("map")), chart), side));
}

function neighbours({ t }, near, goTo) {
  return [el("ul", { class: "bars near", "data-role": "neighbours" }, near.map((one) => el("li", {}, el("button", {
    type: "button", class: "bar", vars: { "--share": Math.max(0, one.cosine).toFixed(3) }, on: { click: () => goTo(one.word) },
  }, el("i"), el("span", {}, pieceText(one.word)), el("span", {}, one.cosine.toFixed(3)))))), el("p", { class: "muted" }, t("cosine"))];
}

/** Labels that would cover one another are left out; their points stay and can be pointed at. */
function mapOf(context, { points, shares }, query, goTo) {
  const { t } = context;
  const asked = new Set([...query.positive, ...query.negative]);
  const place = scale(points);
  const taken = [];
  const ordered = [...points.filter((one) => asked.has(one.label)), ...points.filter((one) => !asked.has(one.label))];
  const parts = ordered.map((one) => {
    const [x, y] = place(one);
    const text = short(pieceText(one.label));
    const width = 8 * [...text].reduce((sum, sign) => sum + (sign.codePointAt(0) > 0x2e80 ? 1.7 : 1), 0);
    const box = { left: x + 6, right: x + 10 + width, top: y - 9, bottom: y + 9 };
    const free = !taken.some((other) => box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top);
    if (free) taken.push(box, { left: x - 4, right: x + 4, top: y - 4, bottom: y + 4 });
    const part = svg("g", {
      class: `point ${asked.has(one.label) ? "asked" : ""} ${free ? "" : "quiet"}`, role: goTo ? "button" : "img", tabindex: "-1",
      "aria-label": t("point", { label: one.label, x: one.x.toFixed(2), y: one.y.toFixed(2) }), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
      on: goTo ? { click: () => goTo(one.label), keydown: (event) => {
        if (event.key === "Enter" || event.key === " ") goTo(one.label);
      } } : {},
    }, svg("circle", { r: 4 }), svg("text", { x: 8, y: 4 }, text), svg("title", {}, one.label));
    noteFor(part, () => one.label);
    return part;
  });
  const drawing = svg("svg", { class: "map", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "group", "aria-label": t("map"), "data-role": "map" }, parts);
  walk(drawing, parts);
  return [el("div", { class: "wide" }, drawing), el("p", { class: "muted" }, t("mapHint", { x: (100 * shares[0]).toFixed(0), y: (100 * shares[1]).toFixed(0) }))];
}

function short(text) {
  const signs = [...text.trim()];
  return signs.length > 32 ? `${signs.slice(0, 31).join("")}…` : signs.join("") || "␣";
}

function scale(points) {
  const bounds = (key) => points.reduce(([low, high], one) => [Math.min(low, one[key]), Math.max(high, one[key])], [Infinity, -Infinity]);
  const [left, right] = bounds("x");
  const [bottom, top] = bounds("y");
  const inner = { width: SIZE.width - 2 * SIZE.pad - 60, height: SIZE.height - 2 * SIZE.pad };
  return ({ x, y }) => [
    SIZE.pad + ((x - left) / (right - left || 1)) * inner.width,
    SIZE.pad + (1 - (y - bottom) / (top - bottom || 1)) * inner.height,
  ];
}

/** Arrow keys go to the nearest point in their direction. */
function walk(drawing, parts) {
  const middle = (part) => {
    const box = part.querySelector("circle").getBoundingClientRect();
    return [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  };
  const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  drawing.addEventListener("keydown", (event) => {
    const way = ways[event.key];
    const here = document.activeElement.closest(".point");
    if (!way || !here) return;
    event.preventDefault();
    const [x, y] = middle(here);
    const far = parts.filter((part) => part !== here).map((part) => {
      const [dx, dy] = [middle(part)[0] - x, middle(part)[1] - y];
      const along = dx * way[0] + dy * way[1];
      return { part, cost: along > 0 ? Math.hypot(dx, dy) * (1 + Math.abs(dx * way[1] + dy * way[0]) / along) : Infinity };
    }).sort((a, b) => a.cost - b.cost)[0];
    if (!far || far.cost === Infinity) return;
    here.setAttribute("tabindex", "-1");
    far.part.setAttribute("tabindex", "0");
    far.part.focus();
  });
  parts[0]?.setAttribute("tabindex", "0");
}
