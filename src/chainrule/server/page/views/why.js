/** Why: what a model looked at when it gave a token its probability. */

import { el, show } from "../core/dom.js";
import { emptyView, runMenu, submitButton, textBox } from "../parts/controls.js";
import { colouredText, tokenDetails, topOfScale } from "../parts/tokens.js";
import { reasonCards, reasonWords } from "../parts/reasons.js";

export const words = {
  en: {
    ...reasonWords.en,
    how: "Train a language model: chainrule train TEXT --model ngram.",
    example: "The quick brown fox jumps over the lazy dog.",
    pick: "Choose the token to explain",
    translation: "Translation; empty: the run translates",
    empty: "Write a text.",
  },
  zh: {
    ...reasonWords.zh,
    how: "请训练一个语言模型：chainrule train TEXT --model ngram。",
    example: "The quick brown fox jumps over the lazy dog.",
    pick: "选择要解释的词元",
    translation: "译文；留空则由模型翻译",
    empty: "请输入文本。",
  },
};

export function mount(root, context) {
  const { t, values, keep } = context;
  const runs = [...context.of("lm"), ...context.of("translation")];
  if (!runs.length) {
    show(root, emptyView(context, t("how")));
    return;
  }
  const submit = () => {
    keep({ text: text.box.value, translation: translation.box.value, at: "" });
    start();
  };
  const menu = runMenu(context, runs, values.run, (name) => {
    keep({ run: name, at: "", translation: "" });
    translation.box.value = "";
    start();
  });
  const text = textBox(context, values.text ?? t("example"), submit, { rows: 2 });
  const translation = textBox(context, values.translation ?? "", submit, { rows: 2, label: t("translation") });
  const tokens = el("div");
  const explained = el("div", { class: "reasons", "data-role": "reasons" });
  show(root, el("div", { class: "card" }, el("div", { class: "row end" }, menu, submitButton(context, submit)), text.element, translation.element),
    tokens, explained);

  /** Colour the tokens that can be explained, and explain the chosen one, or the last. */
  async function start() {
    const model = menu.querySelector("select").value;
    const translates = runs.find((one) => one.name === model).task === "translation";
    translation.element.hidden = !translates;
    show(explained);
    if (!text.box.value) {
      context.stop();
      show(tokens, el("p", { class: "empty" }, t("empty")));
      return;
    }
    const given = { model, text: text.box.value };
    const found = translates ? await forced(context, given, translation.box) : await scored(context, given);
    if (!found) return;
    const body = translates ? { ...given, translation: translation.box.value } : given;
    const choose = (index) => {
      keep({ at: index });
      explain(context, explained, { ...body, position: index, top: 8 });
    };
    const box = colouredText(context, found, topOfScale(found.tokens), { label: t("pick"), pick: () => {}, choose });
    show(tokens, el("p", { class: "muted" }, t("pick")), box);
    const at = values.at ? Math.min(Number(values.at), found.tokens.length - 1) : found.tokens.length - 1;
    const part = [...box.querySelectorAll(".token")].findLast((one) => Number(one.dataset.index) <= at);
    part?.setAttribute("aria-selected", "true");
    explain(context, explained, { ...body, position: at, top: 8 });
  }
  start();
}

/** The tokens of a text with their bits. */
function scored({ run, api }, given) {
  return run((signal) => api.post("page/api/bits", { ...given, top: 5 }, signal));
}

/** The tokens of a translation with their bits; without one, the run's own is put into the box. */
async function forced({ run, api }, given, box) {
  const wanted = box.value ? { ...given, translation: box.value } : given;
  const found = await run((signal) => api.post("page/api/forced", wanted, signal));
  if (!found) return null;
  box.value = found.translation;
  return joined(found.tokens);
}

/** Tokens without places in a text: each is written after the other, with a space between. */
function joined(tokens) {
  let text = "";
  const placed = tokens.map((one) => {
    const begin = [...text].length;
    text += one.token;
    const end = [...text].length;
    text += " ";
    return { ...one, begin, end };
  });
  return { text: text.trimEnd(), tokens: placed };
}

async function explain(context, explained, body) {
  const { run, api } = context;
  const found = await run((signal) => api.post("page/api/why", body, signal));
  if (!found) return;
  show(explained, el("div", { class: "split" },
    el("div", { class: "stack" }, reasonCards(context, found)),
    el("aside", { class: "card side" }, tokenDetails(context, found))));
}
