/** Labels: the probabilities of a classifier and what its pooling looked at; the tags of words. */

import { el, rove, show } from "../core/dom.js";
import { noteFor } from "../core/save.js";
import { emptyView, runMenu, submitButton, textBox } from "../parts/controls.js";
import { pieceText, probabilityText, visible } from "../parts/figures.js";
import { barList } from "../parts/tokens.js";

export const words = {
  en: {
    how: "Train a classifier or a tagger: chainrule train LABELS.tsv --model classifier.",
    example: "Return the square root of x, or raise an error if it is negative.",
    second: "Second text",
    go: "Label",
    empty: "Write a text.",
    labels: "Labels",
    several: "Each label has a probability of its own: a text may have several.",
    one: "The probabilities of all labels sum to one.",
    seen: "What the attention pooling looked at",
    seenHint: "The vector of the text is the mean of its tokens by these weights. Point at a token, or use the arrow keys.",
    share: "“{token}” has {share}% of the attention",
    unseen: "The pooling of this run ({pooling}) has no attention to show.",
    tags: "Tags of the words",
    tagHint: "Point at a word, tap it, or use the arrow keys.",
    tagOf: "Tags of “{word}”",
  },
  zh: {
    how: "请训练一个分类器或标注器：chainrule train LABELS.tsv --model classifier。",
    example: "Return the square root of x, or raise an error if it is negative.",
    second: "第二个文本",
    go: "标注",
    empty: "请输入文本。",
    labels: "标签",
    several: "每个标签有各自的概率：一个文本可以有多个标签。",
    one: "所有标签的概率之和为 1。",
    seen: "注意力汇聚（pooling）关注了什么",
    seenHint: "文本的向量是各词元按这些权重的加权平均。指向一个词元，或使用方向键。",
    share: "“{token}”占注意力的 {share}%",
    unseen: "此模型的汇聚方式（{pooling}）没有注意力可显示。",
    tags: "词的标注",
    tagHint: "指向或点按一个词，或使用方向键。",
    tagOf: "“{word}”的标注",
  },
};

export function mount(root, context) {
  const { t, values, keep } = context;
  const runs = [...context.can("classify"), ...context.can("tag")];
  if (!runs.length) {
    show(root, emptyView(context, t("how")));
    return;
  }
  const known = runs.find((one) => one.name === values.run) ?? runs[0];
  const submit = () => {
    keep({ text: text.box.value, second: second.box.value });
    label();
  };
  const menu = runMenu(context, runs, known.name, (run) => context.go("labels", { ...context.values, run }));
  const text = textBox(context, values.text ?? t("example"), submit, { rows: 3 });
  const second = textBox(context, values.second ?? "", submit, { rows: 2, label: t("second") });
  second.element.hidden = !values.second;
  const result = el("div", { class: "result" });
  show(root, el("div", { class: "card" }, el("div", { class: "row end" }, menu, submitButton(context, submit, t("go"))), text.element, second.element), result);

  async function label() {
    if (!text.box.value.trim()) {
      show(result, el("p", { class: "empty" }, t("empty")));
      return;
    }
    const more = known.pairs ? { second: second.box.value } : {};
    const found = await context.run((signal) => context.api.post("page/api/labels", { model: known.name, text: text.box.value, ...more }, signal));
    if (found) show(result, found.kind === "tags" ? tags(context, found) : labels(context, found));
  }
  second.element.hidden = !known.pairs;
  label();
}

function labels(context, found) {
  const { t } = context;
  const bars = barList(found.labels.map((one) => ({ token: one.label, probability: one.probability })));
  bars.dataset.role = "labels";
  return [
    el("section", { class: "card" }, el("h2", {}, t("labels")), bars, el("p", { class: "muted" }, t(found.several ? "several" : "one"))),
    el("section", { class: "card" }, el("h2", {}, t("seen")), found.attention ? seen(context, found.attention) : el("p", { class: "muted" }, t("unseen", { pooling: found.pooling }))),
  ];
}

/** The tokens, darker where the weight is larger; the largest weight is darkest. */
function seen({ t }, { tokens, weights }) {
  const high = Math.max(...weights);
  const line = el("p", { class: "muted", "aria-live": "polite", "data-role": "share" }, t("seenHint"));
  const parts = tokens.map((token, place) => {
    const text = pieceText(token);
    const part = el("span", {
      class: `token cool ${text.startsWith(" ") ? "apart" : ""}`, role: "option", tabindex: "-1", "aria-selected": "false", "data-place": place,
      "aria-label": t("share", { token: text.trim() || visible(text), share: (100 * weights[place]).toFixed(1) }),
      vars: { "--share": (weights[place] / high).toFixed(3) },
    }, text.trim() || visible(text));
    noteFor(part, () => part.getAttribute("aria-label"));
    return part;
  });
  const box = el("div", { class: "tokens pieces", role: "listbox", "aria-label": t("seen"), "data-role": "attention" }, parts);
  const pick = (event) => {
    const part = event.target.closest(".token");
    if (!part) return;
    for (const other of parts) other.setAttribute("aria-selected", String(other === part));
    show(line, part.getAttribute("aria-label"));
  };
  box.addEventListener("mouseover", pick);
  box.addEventListener("focusin", pick);
  box.addEventListener("click", pick);
  rove(box, ".token");
  return [box, line];
}

function tags({ t }, found) {
  const side = el("aside", { class: "card side", "data-role": "tag-details" }, el("p", { class: "muted" }, t("tagHint")));
  const places = new Map(found.labels.map((label, place) => [label, place]));
  const parts = found.words.map((one, place) => {
    const probability = one.probabilities[places.get(one.tag)];
    const part = el("span", {
      class: `tagged series-${places.get(one.tag) % 8}`, role: "option", tabindex: "-1", "aria-selected": "false", "data-place": place,
      "aria-label": `${one.word} ${one.tag}, ${t("probability")} ${probabilityText(probability)}`,
    }, el("span", {}, one.word), " ", el("b", {}, one.tag), el("i", { vars: { "--share": probability.toFixed(3) } }));
    noteFor(part, () => part.getAttribute("aria-label"));
    return part;
  });
  const box = el("div", { class: "card tag-line", role: "listbox", "aria-label": t("tags"), "data-role": "tags" }, parts);
  const pick = (event) => {
    const part = event.target.closest(".tagged");
    if (!part) return;
    for (const other of parts) other.setAttribute("aria-selected", String(other === part));
    const one = found.words[Number(part.dataset.place)];
    const ranked = found.labels.map((label, place) => ({ token: label, probability: one.probabilities[place] })).sort((a, b) => b.probability - a.probability);
    show(side, el("h2", {}, t("tagOf", { word: one.word })), barList(ranked.slice(0, 12)));
  };
  box.addEventListener("mouseover", pick);
  box.addEventListener("focusin", pick);
  box.addEventListener("click", pick);
  rove(box, ".tagged");
  return el("div", { class: "split" }, box, side);
}
