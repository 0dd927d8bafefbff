/** The reasons of a token as cards, one function per kind. */

import { el } from "../core/dom.js";
import { traceChart } from "./trace.js";
import { wideBox } from "./controls.js";
import { bitsText, probabilityText, visible } from "./figures.js";
import { barList } from "./tokens.js";

export const reasonWords = {
  en: {
    backoff: "n-gram: order {order} of {largest} decided",
    backoffHelp: "The model looks for the token after the longest context that it has counted. Where the token never followed a context, the context's back-off weight is charged and a shorter one is tried. The factors multiply to the probability.",
    contextColumn: "context",
    factor: "factor",
    found: "found: p = {p}",
    notFollowed: "seen, but never followed by this token: weight {p}",
    notSeen: "context never seen: weight {p}",
    noContext: "(no context)",
    product: "product",
    mixture: "Mixture: the share of each component",
    mixtureHelp: "weight × probability by the component alone, added over all components: {mixed}. The share is the component's part of that sum.",
    tempered: "The mixture is sharpened with temperature {t}.",
    component: "component",
    weight: "weight",
    shareColumn: "share",
    inside: "Inside {name}",
    cache: "Cache ({cache}): what it has remembered of {tokens} tokens",
    cacheHelp: "Share of the cache's probability that each remembered token holds.",
    ago: "{ago} tokens ago",
    emptyCache: "Nothing yet: the cache is uniform before the first token.",
    attention: "Attention: what the last position reads",
    attentionHelp: "The stronger the colour, the larger the weight in the chosen layer and head.",
    layer: "Layer",
    head: "Head",
    mean: "mean",
    recurrent: "Gates and state of {cell}, layer {layer}",
    recurrentHelp: "Means over the units of a layer while it read the last tokens. A forget or update gate near 1 keeps what was stored, an input gate near 1 writes.",
    stateSize: "state size",
    stateChange: "state change",
    input: "input gate",
    forget: "forget gate",
    output: "output gate",
    update: "update gate",
    reset: "reset gate",
    hybrid: "Two branches: p = (1 − γ)·p(AR) + γ·p(NAR) with γ = {gamma}",
    ar: "Autoregressive branch: reads all tokens before",
    nar: "Parallel branch: sees only the source of the block",
    saysP: "gives this token {p}, weight {weight}",
    context: "How much context it needs",
    contextHelp: "Bits of this token if the model knows only the last tokens before it.",
    knownTokens: "tokens known",
  },
  zh: {
    backoff: "n 元模型：由 {largest} 阶中的 {order} 阶决定",
    backoffHelp: "模型在它数过的最长上下文之后查找该词元。若该词元从未出现在某个上下文之后，则计入该上下文的回退 (back-off) 权重，并尝试更短的上下文。各因子之积即为概率。",
    contextColumn: "上下文",
    factor: "因子",
    found: "找到：p = {p}",
    notFollowed: "上下文见过，但其后从未出现该词元：权重 {p}",
    notSeen: "从未见过此上下文：权重 {p}",
    noContext: "（无上下文）",
    product: "乘积",
    mixture: "混合模型：各成分的份额",
    mixtureHelp: "权重 × 该成分单独给出的概率，对所有成分求和：{mixed}。份额是该成分在和中所占的部分。",
    tempered: "混合分布以温度 {t} 锐化。",
    component: "成分",
    weight: "权重",
    shareColumn: "份额",
    inside: "{name} 内部",
    cache: "缓存（{cache}）：从 {tokens} 个词元中记住了什么",
    cacheHelp: "每个被记住的词元在缓存概率中所占的份额。",
    ago: "{ago} 个词元之前",
    emptyCache: "尚无内容：第一个词元之前缓存是均匀分布。",
    attention: "注意力 (attention)：最后一个位置在读什么",
    attentionHelp: "颜色越深，词元在所选层和头中的权重越大。",
    layer: "层",
    head: "头",
    mean: "平均",
    recurrent: "{cell} 第 {layer} 层的门与状态",
    recurrentHelp: "读入最近词元时该层各单元的均值。遗忘门或更新门接近 1 表示保留已存内容，输入门接近 1 表示写入。",
    stateSize: "状态大小",
    stateChange: "状态变化",
    input: "输入门",
    forget: "遗忘门",
    output: "输出门",
    update: "更新门",
    reset: "重置门",
    hybrid: "两个分支：p = (1 − γ)·p(AR) + γ·p(NAR)，γ = {gamma}",
    ar: "自回归 (AR) 分支：读取之前的所有词元",
    nar: "并行 (NAR) 分支：只看到本块的源",
    saysP: "给该词元 {p}，权重 {weight}",
    context: "它需要多少上下文",
    contextHelp: "若模型只知道之前最近的若干词元，该词元的比特数。",
    knownTokens: "已知词元数",
  },
};

const DRAWN = { backoff, mixture, cache, attention, recurrent, hybrid, context };

/** The reasons, each as a card; the curve of the context, which every model has, comes last. */
export function reasonCards(context_, { reasons, probability }) {
  const ordered = [...reasons.filter((one) => one.kind !== "context"), ...reasons.filter((one) => one.kind === "context")];
  return ordered.flatMap((one) => DRAWN[one.kind](context_, one, probability));
}

function card(title, help, ...content) {
  return el("section", { class: "card" }, el("h2", {}, title), help ? el("p", { class: "muted" }, help) : null, content);
}

function shownContext(tokens) {
  return tokens.map(visible).join(" ");
}

function backoff({ t }, { order, largest, tried }) {
  const rows = tried.map(({ context, in_table, probability, backoff: weight }) => {
    const text = probability !== null ? t("found", { p: probabilityText(probability) })
      : t(in_table ? "notFollowed" : "notSeen", { p: probabilityText(weight) });
    return el("tr", { class: probability === null ? null : "decided" },
      el("td", {}, el("code", {}, context.length ? shownContext(context) : t("noContext"))),
      el("td", {}, text),
      el("td", { class: "figure" }, probabilityText(probability ?? weight)));
  });
  const product = tried.reduce((whole, one) => whole * (one.probability ?? one.backoff), 1);
  return card(t("backoff", { order, largest }), t("backoffHelp"), wideBox(t("contextColumn"), el("table", { "data-kind": "backoff" },
    el("thead", {}, el("tr", {}, el("th", {}, t("contextColumn")), el("th", {}), el("th", { class: "figure" }, t("factor")))),
    el("tbody", {}, rows),
    el("tfoot", {}, el("tr", {}, el("th", {}, t("product")), el("td", {}), el("td", { class: "figure", "data-product": product }, probabilityText(product)))))));
}

function mixture(context_, { components, mixed, temperature }, probability) {
  const { t } = context_;
  const rows = components.map((one) => el("tr", {},
    el("td", {}, one.name),
    el("td", { class: "figure" }, one.weight.toFixed(3)),
    el("td", { class: "figure" }, probabilityText(one.probability)),
    el("td", { class: "sharing" }, el("div", { class: "bar", vars: { "--share": one.share.toFixed(4) }, "data-share": one.share },
      el("i"), el("span", {}, `${(100 * one.share).toFixed(1)} %`)))));
  const heads = [t("component"), t("weight"), t("probability"), t("shareColumn")];
  const table = wideBox(t("component"), el("table", { "data-kind": "mixture" },
    el("thead", {}, el("tr", {}, heads.map((name, place) => el("th", { class: place === 1 || place === 2 ? "figure" : null }, name)))),
    el("tbody", {}, rows)));
  const sharper = temperature === 1 ? null : el("p", { class: "muted" }, t("tempered", { t: temperature.toPrecision(3) }));
  const own = card(t("mixture"), t("mixtureHelp", { mixed: probabilityText(mixed) }), table, sharper);
  const inside = components.filter((one) => one.reasons.length).map((one) =>
    el("details", { class: "card" }, el("summary", {}, t("inside", { name: one.name })),
      el("div", { class: "stack" }, one.reasons.flatMap((reason) => DRAWN[reason.kind](context_, reason, probability)))));
  return [own, ...inside];
}

function cache({ t }, { cache: kind, tokens, remembered }) {
  const bars = barList(remembered.map((one) => ({
    token: one.token, probability: one.weight, note: one.ago === null ? null : t("ago", { ago: one.ago }),
  })));
  return card(t("cache", { cache: kind, tokens }), remembered.length ? t("cacheHelp") : t("emptyCache"), remembered.length ? bars : null);
}

function attention({ t }, { tokens, weights }) {
  const layers = weights.length;
  const heads = weights[0].length;
  const choices = (count, label) => el("select", { "aria-label": label },
    el("option", { value: "" }, `${label}: ${t("mean")}`),
    Array.from({ length: count }, (_, place) => el("option", { value: place }, `${label} ${place + 1}`)));
  const layer = choices(layers, t("layer"));
  const head = choices(heads, t("head"));
  const text = el("div", { class: "tokens cool" });
  const grid = el("div", { class: "heads", role: "group", "aria-label": t("attention") });
  const draw = () => {
    const row = meanRow(weights, layer.value, head.value);
    const top = Math.max(...row);
    text.replaceChildren(...tokens.map((token, place) => el("span", {
      class: "token", title: row[place].toFixed(3), vars: { "--share": (row[place] / top).toFixed(3) },
    }, `${visible(token)}`)));
    for (const cell of grid.children) cell.setAttribute("aria-pressed", String(cell.dataset.layer === layer.value && cell.dataset.head === head.value));
  };
  weights.forEach((rows, layerPlace) => rows.forEach((row, headPlace) => {
    const choose = () => {
      layer.value = String(layerPlace);
      head.value = String(headPlace);
      draw();
    };
    grid.append(headCell(row, layerPlace, headPlace, `${t("layer")} ${layerPlace + 1}, ${t("head")} ${headPlace + 1}`, choose));
  }));
  grid.style.setProperty("--heads", heads);
  layer.addEventListener("change", draw);
  head.addEventListener("change", draw);
  draw();
  return card(t("attention"), t("attentionHelp"), el("div", { class: "row" }, layer, head), text, grid);
}

/** A small picture of one head: the weights of the last positions as strips. */
function headCell(row, layer, head, label, choose) {
  const shown = row.slice(-32);
  const top = Math.max(...shown);
  const strips = shown.map((one) => el("i", { vars: { "--share": (one / top).toFixed(3) } }));
  return el("button", { type: "button", class: "head", "data-layer": layer, "data-head": head, "aria-label": label, title: label, on: { click: choose } }, strips);
}

function meanRow(weights, layer, head) {
  const layers = layer === "" ? weights : [weights[Number(layer)]];
  const rows = layers.flatMap((heads) => (head === "" ? heads : [heads[Number(head)]]));
  return rows[0].map((_, place) => rows.reduce((sum, row) => sum + row[place], 0) / rows.length);
}

function recurrent({ t }, { cell, tokens, layers }) {
  return layers.map((layer, place) => {
    const series = Object.entries(layer.gates).map(([name, values]) => ({ name: t(name), values }));
    const state = [{ name: t("stateSize"), values: layer.size }, { name: t("stateChange"), values: layer.change }];
    return card(t("recurrent", { cell, layer: place + 1 }), place ? null : t("recurrentHelp"),
      series.length ? traceChart(series, { labels: tokens.map(visible), low: 0, high: 1 }) : null,
      traceChart(state, { labels: tokens.map(visible), low: 0 }));
  });
}

function hybrid({ t }, { gamma, ar, nar, ar_best: arBest, nar_best: narBest }) {
  const side = (title, p, weight, best) => el("div", {}, el("h3", {}, title),
    el("p", { class: "muted" }, t("saysP", { p: probabilityText(p), weight: weight.toFixed(3) })), barList(best));
  return card(t("hybrid", { gamma: gamma.toFixed(3) }), null, el("div", { class: "halves", "data-kind": "hybrid", "data-p": (1 - gamma) * ar + gamma * nar },
    side(t("ar"), ar, 1 - gamma, arBest), side(t("nar"), nar, gamma, narBest)));
}

function context({ t }, { known, bits }) {
  const finite = bits.map((one) => one ?? Number.NaN);
  return card(t("context"), t("contextHelp"),
    traceChart([{ name: t("bits"), values: finite }], { labels: known.map(String), low: 0, caption: t("knownTokens"), points: true }),
    el("p", { class: "hidden" }, known.map((size, place) => `${size}: ${bitsText(bits[place])}`).join(", ")));
}
