/**
 * The views of the page, in the order of its tabs. A new view is one module in views/ and one line here.
 *
 * A module exports `words`, its texts in English and Chinese, and `mount(root, context)`; README.md describes both.
 */
export const VIEWS = [
  { name: "bits", title: { en: "Text in bits", zh: "文本比特图" }, module: "./views/bits.js" },
  { name: "next", title: { en: "Next token", zh: "下一个词元" }, module: "./views/next.js" },
  { name: "why", title: { en: "Why", zh: "为什么" }, module: "./views/why.js" },
  { name: "side", title: { en: "Side by side", zh: "并排比较" }, module: "./views/side.js" },
  { name: "translate", title: { en: "Translate", zh: "翻译" }, module: "./views/translate.js" },
  { name: "runs", title: { en: "Runs", zh: "训练与排行" }, module: "./views/runs.js" },
  { name: "vectors", title: { en: "Vectors", zh: "词向量" }, module: "./views/vectors.js" },
  { name: "labels", title: { en: "Labels", zh: "标签" }, module: "./views/labels.js" },
];
