/** Next token: the distribution before and after temperature, top-k and top-p; choose, undo, branch, generate. */

import { el, rove, show } from "../core/dom.js";
import { grow, pathTo, readTree, runsOf, writeTree } from "../parts/branches.js";
import { emptyView, runMenu, slider, submitButton, textBox } from "../parts/controls.js";
import { bitsText, countText, probabilityText, visible } from "../parts/figures.js";
import { decodeFloats, filtered } from "../parts/sampling.js";

export const words = {
  en: {
    how: "Train a language model: chainrule train TEXT --model ngram.",
    example: "The quick brown",
    prompt: "Beginning of the text",
    temperature: "Temperature",
    topK: "Top-k",
    topP: "Top-p",
    all: "all",
    before: "before",
    after: "after",
    bars: "Tokens that may follow; choose one to continue with it",
    others: "{count} other tokens",
    cut: "cut",
    keptOf: "{kept} of {all} tokens are kept; entropy {entropy} bits",
    story: "Text so far",
    undo: "Undo",
    generate: "Generate",
    stop: "Stop",
    count: "Tokens",
    branches: "Branches",
    noBranches: "Choose a token, go back, and choose another: the branches are listed here.",
    goBack: "Go back to here",
    chosen: "Chosen: {token}",
  },
  zh: {
    how: "请训练一个语言模型：chainrule train TEXT --model ngram。",
    example: "The quick brown",
    prompt: "文本开头",
    temperature: "温度 (temperature)",
    topK: "Top-k",
    topP: "Top-p",
    all: "全部",
    before: "之前",
    after: "之后",
    bars: "可能的后续词元；选择一个以继续",
    others: "其余 {count} 个词元",
    cut: "已截去",
    keptOf: "保留 {all} 个词元中的 {kept} 个；熵 {entropy} 比特",
    story: "目前的文本",
    undo: "撤销",
    generate: "生成",
    stop: "停止",
    count: "词元数",
    branches: "分支",
    noBranches: "选择一个词元，返回，再选择另一个：分支会列在这里。",
    goBack: "回到此处",
    chosen: "已选择：{token}",
  },
};

const SHOWN = 24;
const TOP = 200;

export function mount(root, context) {
  const { t } = context;
  const runs = context.of("lm");
  if (!runs.length) {
    show(root, emptyView(context, t("how")));
    return undefined;
  }
  const view = new NextView(root, context, runs);
  view.refresh();
  return () => context.stop();
}

class NextView {
  constructor(root, context, runs) {
    const { t, values } = context;
    this.context = context;
    this.tree = readTree(values.tree ?? "");
    this.options = {
      temperature: Number(values.t ?? 1),
      topK: values.k ? Number(values.k) : null,
      topP: Number(values.p ?? 1),
    };
    this.menu = runMenu(context, runs, values.run, (name) => this.restart({ run: name }));
    this.text = textBox(context, values.text ?? t("example"), () => this.restart({ text: this.text.box.value }), {
      rows: 2,
      label: t("prompt"),
    });
    this.bars = el("div");
    this.story = el("div", { class: "tokens story", "data-role": "story", "aria-label": t("story"), role: "group" });
    this.branches = el("div", { "data-role": "branches" });
    this.sliders = el("div", { class: "sliders" });
    show(root,
      el("div", { class: "card" },
        el("div", { class: "row end" }, this.menu, submitButton(context, () => this.restart({ text: this.text.box.value }))),
        this.text.element),
      el("div", { class: "split" },
        el("div", {},
          el("div", { class: "card" }, el("h2", {}, t("story")), this.actions(), this.story),
          el("div", { class: "card" }, this.sliders, this.bars)),
        el("aside", { class: "card side" }, el("h2", {}, t("branches")), this.branches)));
  }

  get model() {
    return this.menu.querySelector("select").value;
  }

  /** Another run or prompt: the tree begins anew. */
  restart(values) {
    this.tree = readTree("");
    this.context.keep({ ...values, tree: "" });
    this.refresh();
  }

  actions() {
    const { t, values } = this.context;
    this.undo = el("button", { type: "button", "data-role": "undo", on: { click: () => this.goTo(this.tree.nodes[this.tree.at].parent) } }, t("undo"));
    this.count = el("input", { type: "number", min: 1, max: 500, value: values.n ?? 40, "aria-label": t("count"), class: "short" });
    this.play = el("button", { type: "button", class: "main", "data-role": "generate", on: { click: () => this.generate() } }, t("generate"));
    this.halt = el("button", { type: "button", "data-role": "stop", disabled: true, on: { click: () => this.context.stop() } }, t("stop"));
    return el("div", { class: "row actions", "data-live": true }, this.undo, this.play, this.count, this.halt);
  }

  goTo(place) {
    if (place === null) return;
    this.tree.at = place;
    this.refresh();
  }

  keepTree() {
    this.context.keep({ tree: writeTree(this.tree) });
  }

  ids() {
    return pathTo(this.tree, this.tree.at).map((place) => this.tree.nodes[place].id);
  }

  /** Ask for the distribution at the current node, and show everything. */
  async refresh() {
    const { api, run } = this.context;
    this.keepTree();
    this.drawStory();
    this.drawBranches();
    const body = { model: this.model, text: this.text.box.value, tokens: this.ids(), top: TOP };
    const found = await run((signal) => api.post("page/api/next", body, signal));
    if (!found) return;
    this.found = { ...found, logProbs: decodeFloats(found.log_probs) };
    this.prompt = [found.eos, ...found.tokens.slice(0, found.tokens.length - body.tokens.length)];
    this.drawSliders();
    this.drawBars();
  }

  choose(candidate) {
    const { t, announce } = this.context;
    grow(this.tree, candidate.id, candidate.text);
    announce(t("chosen", { token: visible(candidate.token) }));
    this.refresh().then(() => this.bars.querySelector("button")?.focus());
  }

  drawStory() {
    const { t } = this.context;
    const path = pathTo(this.tree, this.tree.at);
    const parts = path.map((place) => {
      const { text } = this.tree.nodes[place];
      return el("button", {
        type: "button", class: "token piece", title: t("goBack"), "aria-current": place === this.tree.at ? "true" : null,
        on: { click: () => this.goTo(place) },
      }, text.includes("\n") ? text.replaceAll("\n", "↵\n") : text || "·");
    });
    show(this.story, el("button", { type: "button", class: "piece start", title: t("goBack"), on: { click: () => this.goTo(0) } }, this.text.box.value || "·"), parts);
    this.undo.disabled = this.tree.at === 0;
  }

  drawSliders() {
    const { t, keep } = this.context;
    const size = this.found.logProbs.length;
    const sizes = topSizes(size, this.options.topK);
    const change = (more, values) => {
      Object.assign(this.options, more);
      keep(values);
      this.drawBars();
    };
    if (this.sized === size) return;
    this.sized = size;
    show(this.sliders,
      slider(t("temperature"), { min: 0, max: 2, step: 0.05, value: this.options.temperature }, (one) => one.toFixed(2),
        (one) => change({ temperature: one }, { t: one === 1 ? "" : one })),
      slider(t("topK"), { min: 0, max: sizes.length - 1, step: 1, value: sizes.indexOf(this.options.topK) }, (step) => String(sizes[step] ?? t("all")),
        (step) => change({ topK: sizes[step] }, { k: sizes[step] ?? "" })),
      slider(t("topP"), { min: 0.05, max: 1, step: 0.01, value: this.options.topP }, (one) => one.toFixed(2),
        (one) => change({ topP: one }, { p: one === 1 ? "" : one })));
  }

  drawBars() {
    const { t, language } = this.context;
    const after = filtered(this.found.logProbs, this.options);
    const shown = this.found.best.slice(0, SHOWN);
    const top = Math.max(...shown.map((one) => Math.max(one.probability, after[one.id])));
    const bars = shown.map((one) => this.bar(one, after[one.id], top));
    const hidden = after.length - shown.length;
    const rest = 1 - shown.reduce((sum, one) => sum + one.probability, 0);
    const restAfter = 1 - shown.reduce((sum, one) => sum + after[one.id], 0);
    const kept = after.reduce((count, one) => count + (one > 0), 0);
    const entropy = -after.reduce((sum, one) => sum + (one > 0 ? one * Math.log2(one) : 0), 0);
    const head = el("div", { class: "bar head" }, el("span", {}), el("span", { class: "two" }, el("b", {}, t("before")), el("b", {}, t("after"))));
    const last = hidden > 0 ? el("li", { class: "bar rest", vars: share(rest, restAfter, top) }, el("i"), el("i", { class: "after" }),
      el("span", {}, t("others", { count: countText(hidden, language) })), figures(Math.max(0, rest), Math.max(0, restAfter), t)) : null;
    const list = el("ul", { class: "bars", "aria-label": t("bars") }, bars, last);
    const had = this.bars.contains(document.activeElement);
    show(this.bars, head, list, el("p", { class: "muted", "data-role": "kept" }, t("keptOf", {
      kept: countText(kept, language), all: countText(after.length, language), entropy: bitsText(Math.max(0, entropy)),
    })));
    rove(list, "button", { columns: 1 });
    if (had) list.querySelector("button")?.focus();
  }

  bar(one, after, top) {
    const { t } = this.context;
    const button = el("button", {
      type: "button", class: "bar", tabindex: "-1", "data-id": one.id, "data-after": after, vars: share(one.probability, after, top),
      on: { click: () => this.choose(one) },
    }, el("i"), el("i", { class: "after" }), el("span", {}, visible(one.token)), figures(one.probability, after, t));
    return el("li", { class: after === 0 ? "cut" : null }, button);
  }

  async generate() {
    const { api, run, keep } = this.context;
    const { temperature, topK, topP } = this.options;
    keep({ n: this.count.value === "40" ? "" : this.count.value });
    this.halt.disabled = false;
    const sampling = temperature === 0 ? { temperature } : { temperature, top_p: topP, ...(topK === null ? {} : { top_k: topK }) };
    const body = {
      model: this.model, prompt: [...this.prompt, ...this.ids()], max_tokens: Number(this.count.value), stream: true, logprobs: 0,
      stop_at_eos: false, ...sampling,
    };
    await run(async (signal) => {
      for await (const part of api.stream("v1/completions", body, signal)) this.append(part.choices[0]);
    });
    this.halt.disabled = true;
    this.refresh();
  }

  /** Tokens that were generated: several may come with one text, or with none while a character is unfinished. */
  append(choice) {
    if (!choice?.logprobs) return;
    const ids = choice.logprobs.token_ids;
    ids.forEach((id, place) => grow(this.tree, id, place === ids.length - 1 ? choice.text : ""));
    this.drawStory();
  }

  drawBranches() {
    const { t } = this.context;
    const branches = runsOf(this.tree);
    if (!branches.length) {
      show(this.branches, el("p", { class: "muted" }, t("noBranches")));
      return;
    }
    const list = (runs, role) => el("ul", { role, class: "branches" }, runs.map((one) => this.branch(one, list)));
    show(this.branches, list(branches, "tree"));
    const tree = this.branches.firstElementChild;
    tree.setAttribute("aria-label", t("branches"));
    rove(tree, "[role=treeitem]", { columns: 1 });
  }

  branch({ places, children }, list) {
    const text = places.map((place) => this.tree.nodes[place].text).join("");
    const here = places.includes(this.tree.at);
    const go = (event) => {
      event.stopPropagation();
      this.goTo(places.at(-1));
    };
    return el("li", {
      role: "treeitem", tabindex: "-1", "aria-selected": String(here), "aria-expanded": children.length ? "true" : null,
      on: { click: go, keydown: (event) => { if (event.key === "Enter") go(event); } },
    }, el("span", { class: "branch" }, visible(text)), children.length ? list(children, "group") : null);
  }
}

/** The values of top-k that the slider has, `chosen` among them; null, the last, keeps all. */
function topSizes(size, chosen) {
  const usual = [...Array.from({ length: 20 }, (_, place) => place + 1), 25, 30, 40, 50, 75, 100, 200, 500, 1000, 2000, 5000];
  const sizes = new Set([...usual.filter((one) => one < size), ...(chosen === null ? [] : [chosen])]);
  return [...[...sizes].sort((one, other) => one - other), null];
}

function share(before, after, top) {
  return { "--share": (before / top).toFixed(4), "--after": (after / top).toFixed(4) };
}

function figures(before, after, t) {
  const named = (name, text) => el("span", {}, el("span", { class: "hidden" }, `, ${name} `), text);
  return el("span", { class: "two" }, named(t("before"), probabilityText(before)), named(t("after"), after === 0 ? t("cut") : probabilityText(after)));
}
