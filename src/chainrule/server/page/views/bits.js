/** Text in bits: a text coloured by what each token costs under a run. */

import { el, show } from "../core/dom.js";
import { emptyView, runMenu, submitButton, textBox } from "../parts/controls.js";
import { bitsText, countText } from "../parts/figures.js";
import { colouredText, heatLegend, tokenDetails, topOfScale } from "../parts/tokens.js";

export const words = {
  en: {
    how: "Train a language model: chainrule train TEXT --model ngram.",
    example: "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps.",
    tokens: "Tokens, coloured by bits",
    order: "n-gram order",
    spelling: "of them spelling",
    point: "Point at a token, tap it, or move with the arrow keys.",
    sum: "{bits} bits for {bytes} bytes, {tokens} tokens: {rate} bits per byte",
    parts: "tokens {tokens}, of which spelling of unknown words {spelling}; white space and lines {formatting}",
    same: "The same sum by two other routes:",
    check: "Check with eval and compress",
    evalSays: "eval: {rate} bits per byte, {bits} bits",
    compressSays: "compress: a code of {coded} bytes, {bits} bits; with header and checksums the file has {bytes} bytes",
    why: "Why this token?",
    next: "What could follow here?",
    empty: "Write a text.",
  },
  zh: {
    how: "请训练一个语言模型：chainrule train TEXT --model ngram。",
    example: "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps.",
    tokens: "按比特着色的词元",
    order: "n 元阶数",
    spelling: "其中拼写",
    point: "指向或点按一个词元，或用方向键移动。",
    sum: "{bytes} 字节、{tokens} 个词元共 {bits} 比特：每字节 {rate} 比特",
    parts: "词元 {tokens}，其中未登录词的拼写 {spelling}；空白与换行 {formatting}",
    same: "用另外两种途径得到的同一总和：",
    check: "用 eval 和 compress 核对",
    evalSays: "eval：每字节 {rate} 比特，共 {bits} 比特",
    compressSays: "compress：编码 {coded} 字节，即 {bits} 比特；连同文件头与校验和，文件为 {bytes} 字节",
    why: "为什么是这个词元？",
    next: "此处之后可能是什么？",
    empty: "请输入文本。",
  },
};

/** Largest number of tokens that is checked without being asked. */
const CHECKED = 400;

export function mount(root, context) {
  const { t, values, keep, run, api } = context;
  const runs = context.of("lm");
  if (!runs.length) {
    show(root, emptyView(context, t("how")));
    return;
  }
  const submit = () => {
    keep({ text: text.box.value, at: "" });
    colour();
  };
  const menu = runMenu(context, runs, values.run, (name) => {
    keep({ run: name });
    submit();
  });
  const text = textBox(context, values.text ?? t("example"), submit);
  const result = el("div");
  show(root, el("div", { class: "card" }, el("div", { class: "row end" }, menu, submitButton(context, submit)), text.element), result);

  async function colour() {
    const model = menu.querySelector("select").value;
    if (!text.box.value) {
      context.stop();
      show(result, el("p", { class: "empty" }, t("empty")));
      return;
    }
    const found = await run((signal) => api.post("page/api/bits", { model, text: text.box.value, top: 8 }, signal));
    if (found) draw(result, context, model, found);
  }
  colour();
}

function draw(result, context, model, found) {
  const { t, keep, values } = context;
  const side = el("aside", { class: "card side" }, el("p", { class: "muted" }, t("point")));
  const high = topOfScale(found.tokens);
  const pick = (index) => show(side, details(context, model, found, index));
  const coloured = colouredText(context, found, high, {
    label: t("tokens"),
    pick,
    choose: (index) => keep({ at: index }),
  });
  show(result, el("div", { class: "split" }, el("div", {}, coloured, summary(context, model, found, high)), side));
  const at = Number(values.at);
  if (values.at && at < found.tokens.length) {
    coloured.querySelector(`[data-index="${at}"]`)?.setAttribute("aria-selected", "true");
    pick(at);
  }
  requestAnimationFrame(() => setTimeout(() => performance.mark("coloured"))); // painted by then; bench/page.py reads it
}

function details(context, model, found, index) {
  const { t, address } = context;
  const token = found.tokens[index];
  const more = [
    ...(token.order === undefined ? [] : [[t("order"), token.order]]),
    ...(token.spelling_bits ? [[t("spelling"), bitsText(token.spelling_bits)]] : []),
  ];
  const before = [...found.text].slice(0, token.begin).join("");
  return el("div", {}, tokenDetails(context, token, more),
    el("p", { class: "row", "data-live": true },
      el("a", { href: address("why", { run: model, text: found.text, at: index }) }, t("why")),
      el("a", { href: address("next", { run: model, text: before }) }, t("next"))));
}

function summary(context, model, found, high) {
  const { t, language } = context;
  const spelling = found.tokens.reduce((sum, one) => sum + one.spelling_bits, 0);
  const ofTokens = found.bits === null ? null : found.bits - found.formatting_bits;
  const sum = t("sum", {
    bits: bitsText(found.bits),
    bytes: countText(found.bytes, language),
    tokens: countText(found.tokens.length, language),
    rate: found.bits_per_byte === null ? "–" : found.bits_per_byte.toFixed(4),
  });
  const parts = t("parts", { tokens: bitsText(ofTokens), spelling: bitsText(spelling), formatting: bitsText(found.formatting_bits) });
  const box = el("div", { class: "check", "data-role": "check" });
  if (found.normalised) offerCheck(box, context, model, found);
  return el("div", { class: "card" }, heatLegend(context, high),
    el("p", { class: "sum", "data-bits": found.bits }, sum),
    el("p", { class: "muted" }, parts),
    el("p", { class: "muted" }, found.normalised ? t("same") : t("unnormalised")), box);
}

function offerCheck(box, context, model, found) {
  const { t, run, api, language } = context;
  const check = async () => {
    const said = await run((signal) => api.post("page/api/check", { model, text: found.text }, signal));
    if (!said) return;
    const rate = said.eval.bits_per_byte;
    show(box,
      el("p", { "data-bits": rate * said.eval.bytes }, t("evalSays", { rate: rate.toFixed(4), bits: bitsText(rate * said.eval.bytes) })),
      el("p", { "data-bytes": said.compress.compressed_bytes, "data-coded": said.compress.coded_bytes }, t("compressSays", {
        coded: countText(said.compress.coded_bytes, language),
        bits: countText(8 * said.compress.coded_bytes, language),
        bytes: countText(said.compress.compressed_bytes, language),
      })));
  };
  if (found.tokens.length <= CHECKED) check();
  else show(box, el("button", { type: "button", "data-live": true, on: { click: check } }, t("check")));
}
