/** Side by side: one text under several runs with different tokenisers, aligned over characters. */

import { el, rove, show } from "../core/dom.js";
import { noteFor } from "../core/save.js";
import { emptyView, runBoxes, submitButton, textBox, wideBox } from "../parts/controls.js";
import { bitsText, countText, visible } from "../parts/figures.js";

export const words = {
  en: {
    how: "Serve language models: chainrule serve RUN RUN --open.",
    example: "The quick brown fox jumps over the lazy dog.",
    choose: "Choose at least two runs.",
    total: "Total",
    perByte: "bits per byte",
    tokensOf: "tokens",
    tokenizer: "tokeniser",
    formatting: "white space and lines",
    difference: "Difference in bits: {first} compared with {second}",
    legend: "orange: {first} needs more bits; blue: {second} needs more bits",
    against: "Compare with",
    table: "Bits per word",
    word: "word",
    sorted: "largest difference first",
    inOrder: "in the order of the text",
    order: "Order",
    difference_: "difference",
    empty: "Write a text.",
  },
  zh: {
    how: "请提供语言模型：chainrule serve RUN RUN --open。",
    example: "The quick brown fox jumps over the lazy dog.",
    choose: "请至少选择两个模型。",
    total: "合计",
    perByte: "每字节比特",
    tokensOf: "词元",
    tokenizer: "分词器",
    formatting: "空白与换行",
    difference: "比特之差：{first} 与 {second} 相比",
    legend: "橙色：{first} 需要更多比特；蓝色：{second} 需要更多比特",
    against: "比较对象",
    table: "每个词的比特",
    word: "词",
    sorted: "差异最大者在前",
    inOrder: "按文本顺序",
    order: "顺序",
    difference_: "差",
    empty: "请输入文本。",
  },
};

export function mount(root, context) {
  const { t, values, keep, run, api } = context;
  const runs = context.of("lm");
  if (!runs.length) {
    show(root, emptyView(context, t("how")));
    return;
  }
  const names = runs.map((one) => one.name);
  let chosen = values.runs ? values.runs.split("|").filter((one) => names.includes(one)) : names.slice(0, 2);
  const text = textBox(context, values.text ?? t("example"), submit);
  const result = el("div");
  const boxes = runBoxes(context, runs, chosen, (more) => {
    chosen = [...chosen.filter((one) => more.includes(one)), ...more.filter((one) => !chosen.includes(one))];
    keep({ runs: chosen.join("|") });
    compare();
  });
  show(root, el("div", { class: "card stack" }, boxes, el("div", { class: "row end" }, text.element, submitButton(context, submit))), result);

  function submit() {
    keep({ text: text.box.value });
    compare();
  }

  async function compare() {
    if (chosen.length < 2 || !text.box.value) {
      context.stop();
      show(result, el("p", { class: "card empty" }, chosen.length < 2 ? t("choose") : t("empty")));
      return;
    }
    const found = await run((signal) => api.post("page/api/align", { models: chosen, text: text.box.value }, signal));
    if (found) draw(result, context, found);
  }
  compare();
}

function draw(result, context, found) {
  const { t, keep, values, language } = context;
  const pair = { first: 0, second: Math.min(found.models.length - 1, Math.max(1, Number(values.with ?? 1))) };
  const coloured = el("div");
  const table = wideBox(t("table"));
  const redraw = () => {
    show(coloured, differences(context, found, pair));
    show(table, wordTable(context, found, pair, order.value === "sorted"));
  };
  const against = el("select", { "aria-label": t("against"), on: { change: () => {
    pair.second = Number(against.value);
    keep({ with: against.value });
    redraw();
  } } }, found.models.slice(1).map((name, place) => el("option", { value: place + 1, selected: place + 1 === pair.second }, name)));
  const order = el("select", { "aria-label": t("order"), on: { change: redraw } },
    el("option", { value: "text" }, t("inOrder")), el("option", { value: "sorted" }, t("sorted")));
  show(result,
    el("div", { class: "card" }, totals(context, found, language)),
    el("div", { class: "card" }, found.models.length > 2 ? el("p", { class: "row" }, t("against"), against) : null, coloured),
    el("div", { class: "card" }, el("div", { class: "row" }, el("h2", {}, t("table")), order), table));
  redraw();
}

function totals({ t }, found, language) {
  const bytes = new TextEncoder().encode(found.text).length;
  const least = Math.min(...found.bits.filter((one) => one !== null));
  const most = Math.max(...found.bits.filter((one) => one !== null));
  const rows = found.models.map((name, place) => el("tr", { class: found.bits[place] === least ? "decided" : null },
    el("th", { scope: "row" }, name),
    el("td", {}, found.tokenizers[place]),
    el("td", { class: "figure" }, countText(found.tokens[place], language)),
    el("td", { class: "figure" }, bitsText(found.formatting_bits[place])),
    el("td", { class: "sharing" }, el("div", { class: "bar", vars: { "--share": ((found.bits[place] ?? most) / most).toFixed(4) } },
      el("i"), el("span", { "data-total": name }, bitsText(found.bits[place])))),
    el("td", { class: "figure" }, found.bits[place] === null ? "–" : (found.bits[place] / bytes).toFixed(3))));
  const heads = [t("run"), t("tokenizer"), t("tokensOf"), t("formatting"), `${t("total")} (${t("bits")})`, t("perByte")];
  return wideBox(t("total"), el("table", { "data-role": "totals" },
    el("thead", {}, el("tr", {}, heads.map((one, place) => el("th", { class: [2, 3, 5].includes(place) ? "figure" : null }, one)))), el("tbody", {}, rows)));
}

function gap(word, { first, second }) {
  const [one, other] = [word.bits[first], word.bits[second]];
  if (one === null || other === null) return one === other ? 0 : one === null ? Infinity : -Infinity;
  return one - other;
}

function differences(context, found, pair) {
  const { t } = context;
  const [first, second] = [found.models[pair.first], found.models[pair.second]];
  const gaps = found.words.map((word) => gap(word, pair));
  const most = Math.max(1, ...gaps.map(Math.abs).filter(Number.isFinite));
  const box = el("div", { class: "tokens", role: "list", "aria-label": t("difference", { first, second }) },
    found.words.map((word, place) => {
      const label = `${visible(word.text.trim() || word.text)}: ${signed(gaps[place])} ${t("bits")}`;
      const part = el("span", {
        class: `token ${gaps[place] < 0 ? "cool" : ""}`, role: "listitem", tabindex: "-1", title: label, "aria-label": label,
        vars: { "--share": Math.min(1, Math.abs(gaps[place]) / most).toFixed(3) },
      }, word.text.replaceAll("\n", "↵\n"));
      noteFor(part, () => label);
      return part;
    }));
  rove(box, ".token");
  return [el("h2", {}, t("difference", { first, second })), box, el("p", { class: "muted" }, t("legend", { first, second }))];
}

function signed(bits) {
  if (!Number.isFinite(bits)) return bits > 0 ? "+∞" : "−∞";
  return `${bits < 0 ? "−" : "+"}${Math.abs(bits).toFixed(2)}`;
}

function wordTable({ t }, found, pair, sorted) {
  const entries = found.words.map((word) => ({ word, difference: gap(word, pair) }));
  if (sorted) entries.sort((one, other) => Math.abs(other.difference) - Math.abs(one.difference));
  const rows = entries.slice(0, 500).map(({ word, difference }) => el("tr", {},
    el("th", { scope: "row" }, el("code", {}, visible(word.text.trim() || word.text))),
    word.bits.map((bits) => el("td", { class: "figure" }, bitsText(bits))),
    el("td", { class: `figure ${difference < 0 ? "less" : "more"}` }, signed(difference))));
  return el("table", { "data-role": "words" },
    el("thead", {}, el("tr", {}, el("th", {}, t("word")), found.models.map((name) => el("th", { class: "figure" }, name)),
      el("th", { class: "figure" }, t("difference_")))), el("tbody", {}, rows));
}
