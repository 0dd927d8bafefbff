/** Translate: n-best, attention, the beam as a tree, other words, and the modes of a hybrid with their passes. */

import { el, rove, show } from "../core/dom.js";
import { PRUNED, beamTree, pathTo, stepLogProb } from "../parts/beam.js";
import { emptyView, field, runMenu, submitButton, textBox } from "../parts/controls.js";
import { pieceText, probabilityText, visible } from "../parts/figures.js";
import { matrix } from "../parts/matrix.js";
import { words } from "./translate.words.js";

export { words };

const BEAMS = [1, 2, 3, 4, 5, 8, 10, 16];

export function mount(root, context) {
  const { t, values, keep } = context;
  const runs = context.can("translate");
  if (!runs.length) {
    show(root, emptyView(context, t("how")));
    return;
  }
  const known = runs.find((one) => one.name === values.run) ?? runs[0];
  const submit = () => {
    keep({ text: text.box.value, prefix: "" });
    translate(result, context, known, text.box.value);
  };
  const again = (more) => {
    keep(more);
    context.go("translate", context.values);
  };
  const text = textBox(context, values.text ?? t("example"), submit, { rows: 2, label: t("source") });
  const result = el("div", { class: "result" });
  const controls = [
    runMenu(context, runs, known.name, (run) => again({ run, prefix: "", mode: "" })),
    menu(t("beams"), BEAMS.map((count) => [String(count), String(count)]), values.beams ?? "", t("asTrained"), (beams) => again({ beams, mode: "" })),
    known.modes.length > 1 ? menu(t("mode"), known.modes.map((one) => [one, t(one)]), values.mode ?? "ar", null, (mode) => again({ mode, prefix: "" })) : null,
    values.mode === "nar" ? menu(t("refine"), [0, 1, 2, 4].map((one) => [String(one), String(one)]), values.refine ?? "0", null, (refine) => again({ refine })) : null,
  ];
  show(root, el("div", { class: "card" }, el("div", { class: "row end" }, controls, submitButton(context, submit, t("go"))), text.element), result);
  translate(result, context, known, text.box.value);
}

function menu(label, options, chosen, none, change) {
  const all = none === null ? options : [["", none], ...options];
  const select = el("select", { on: { change: () => change(select.value) } },
    all.map(([value, name]) => el("option", { value, selected: value === chosen }, name)));
  return field(label, select);
}

function prefixOf(values) {
  return (values.prefix ?? "").split(" ").filter(Boolean).map(Number);
}

function ask(context, run, text, mode, signal) {
  const { values, api } = context;
  const beams = values.beams && mode === "ar" ? { num_beams: Number(values.beams) } : {};
  const refine = mode === "nar" && values.refine ? { refine: Number(values.refine) } : {};
  const prefix = mode === "ar" ? prefixOf(values) : [];
  return api.post("page/api/translation", { model: run.name, text, mode, prefix, ...beams, ...refine }, signal);
}

async function translate(result, context, run, text) {
  const { t, values } = context;
  if (!text.trim()) {
    show(result, el("p", { class: "empty" }, t("empty")));
    return;
  }
  const mode = values.mode || "ar";
  const found = await context.run((signal) => ask(context, run, text, mode, signal));
  if (found) draw(result, context, run, text, found);
}

function draw(result, context, run, text, found) {
  const { t, keep } = context;
  const force = (tokens) => {
    keep({ prefix: tokens.join(" "), mode: "" }, { push: true });
    translate(result, context, run, text);
  };
  const modes = el("div");
  show(result,
    best(context, found, force),
    found.translations.length > 1 ? nBest(context, found, (rank) => tree.mark(rank)) : null,
    run.modes.length > 1 ? modesCard(context, run, text, modes) : null);
  const tree = found.tree ? treeCard(context, found, force) : { element: null, mark: () => {} };
  if (tree.element) result.append(tree.element);
  if (found.attention) result.append(attentionCard(context, found.attention));
}

/** The best translation: click a word, choose another, and the rest is translated anew. */
function best(context, found, force) {
  const { t } = context;
  const panel = el("div", { class: "choice-panel", "data-role": "choices" }, el("p", { class: "muted" }, t("clickWord")));
  const first = found.translations[0];
  const parts = found.choices.map((one, place) => word(t, one, place, found.prefix));
  const line = el("p", { class: "translation", "data-role": "translation", "aria-label": t("words") }, parts);
  const pick = (place) => {
    for (const part of parts) part.removeAttribute("aria-current");
    parts[place].setAttribute("aria-current", "true");
    show(panel, choicesAt(context, found, place, force));
  };
  line.addEventListener("click", (event) => {
    const part = event.target.closest("button");
    if (part) pick(Number(part.dataset.place));
  });
  rove(line, "button");
  const undo = found.prefix
    ? el("p", { class: "row" }, el("span", { class: "muted" }, t("forced", { count: found.prefix })),
      el("button", { type: "button", "data-live": true, "data-role": "free", on: { click: () => force([]) } }, t("free")))
    : null;
  return el("section", { class: "card" }, el("h2", {}, t("best")), line, undo,
    el("p", { class: "muted", "data-role": "summary" }, summary(t, found, first)), panel);
}

/** Whether a piece is the end of a text. */
function isEnd(piece) {
  return piece === "</s>" || piece === "<eos>";
}

function word(t, one, place, prefix) {
  const text = pieceText(one.piece);
  const end = isEnd(one.piece);
  const shown = end ? t("end") : text.trim() || visible(text);
  return el("button", {
    type: "button",
    class: `word ${place < prefix ? "given" : ""} ${end ? "end" : ""} ${text.startsWith(" ") ? "apart" : ""}`,
    "data-place": place,
    tabindex: "-1",
    "aria-label": `${shown}, ${t("probability")} ${probabilityText(Math.exp(one.log_prob))}`,
    vars: { "--share": Math.exp(one.log_prob).toFixed(3) },
  }, shown);
}

function choicesAt({ t }, found, place, force) {
  const before = found.choices.slice(0, place).map((one) => one.token);
  const here = found.choices[place];
  const end = found.choices.at(-1).token;
  const buttons = here.choices.map((one) => el("li", {}, el("button", {
    type: "button",
    class: "bar",
    disabled: one.token === end || one.token === here.token,
    vars: { "--share": Math.exp(one.log_prob).toFixed(4) },
    on: { click: () => force([...before, one.token]) },
  }, el("i"), el("span", {}, one.token === end ? t("end") : visible(pieceText(one.piece).trim() || one.piece)), el("span", {}, probabilityText(Math.exp(one.log_prob))))));
  return [el("h3", {}, t("instead"), " ", el("code", {}, pieceText(here.piece).trim() || here.piece)), el("ul", { class: "bars" }, buttons)];
}

function summary(t, found, first) {
  const facts = [found.mode !== "ar" ? t(found.mode) : found.num_beams === 1 ? t("greedy") : t("searched", { beams: found.num_beams })];
  if (found.passes !== null) facts.push(t("passes", { passes: found.passes, tokens: first.tokens.length + 1 }));
  if (first.log_prob !== null) facts.push(`log p ${first.log_prob.toFixed(3)}`);
  facts.push(`${(1000 * found.seconds).toFixed(0)} ms`);
  return facts.join(" · ");
}

function nBest({ t }, found, mark) {
  const scores = found.translations.map((one) => one.score);
  const top = Math.max(...scores);
  const rows = found.translations.map((one, place) => el("tr", {},
    el("td", { class: "figure" }, place + 1),
    el("td", {}, el("button", { type: "button", class: "quiet left", on: { click: () => mark(place + 1) } }, one.text)),
    el("td", { class: "figure" }, one.score.toFixed(4)),
    el("td", { class: "figure" }, one.log_prob.toFixed(3)),
    el("td", { class: "figure" }, Math.exp(one.score - top).toFixed(2))));
  return el("section", { class: "card" }, el("h2", {}, t("nBest")), el("div", { class: "wide" },
    el("table", { class: "n-best", "data-role": "n-best" },
      el("thead", {}, el("tr", {}, ["#", t("translation"), t("score"), "log p", t("relative")].map((name, place) =>
        el("th", { scope: "col", class: place === 1 ? "" : "figure" }, name)))),
      el("tbody", {}, rows))));
}

/** The beam, with details of the node that is pointed at. */
function treeCard(context, found, force) {
  const { t, values, keep } = context;
  const { nodes } = found.tree;
  const details = el("div", { class: "node-details", "data-role": "node" });
  const holder = el("div");
  const endOf = (rank) => nodes.findIndex((node) => node.rank === rank);
  const pick = (index) => show(details, nodeDetails(context, found, index, force));
  const drawTree = (marked) => show(holder, beamTree(context, found.tree, {
    label: t("tree"), marked, pruned: values.pruned !== "no", pick, choose: pick,
  }));
  const box = el("input", { type: "checkbox", checked: values.pruned !== "no", on: { change: () => {
    keep({ pruned: box.checked ? "" : "no" });
    drawTree(endOf(1));
  } } });
  drawTree(endOf(1));
  pick(endOf(1));
  const legend = el("p", { class: "tree-legend muted" },
    ["kept", "finished", "outranked"].map((fate) => el("span", { class: `key ${fate}` }, t(`key-${fate}`))));
  const element = el("section", { class: "card", "data-role": "tree" },
    el("div", { class: "row spread" }, el("h2", {}, t("tree")), el("label", { "data-live": true }, box, " ", t("showPruned"))),
    el("p", { class: "muted" }, t("treeHint")),
    el("p", { class: "muted" }, t("treeSum", {
      steps: nodes.at(-1)?.length ?? 0, candidates: nodes.length, pruned: nodes.filter((node) => PRUNED.has(node.fate)).length,
    })), legend, holder, details);
  return { element, mark: (rank) => {
    drawTree(endOf(rank));
    pick(endOf(rank));
  } };
}

function nodeDetails({ t }, found, index, force) {
  const { nodes } = found.tree;
  const node = nodes[index];
  const path = pathTo(nodes, index);
  const given = found.choices.slice(0, found.prefix).map((one) => one.token);
  const ends = node.fate === "finished" || node.fate === "ended-late";
  const tokens = [...given, ...path.map((place) => nodes[place].token)];
  const facts = [
    [t("score"), node.score.toFixed(4)],
    ["log p", node.log_prob.toFixed(4)],
    [t("tokenProbability"), probabilityText(Math.exp(stepLogProb(nodes, index)))],
    ...(node.rank ? [[t("rank"), node.rank]] : []),
  ];
  return [
    el("p", { class: "hypothesis" }, [...found.tree.prefix, ...path.map((place) => nodes[place].piece)].filter((piece) => !isEnd(piece)).map(pieceText).join("").trim() || t("end")),
    el("p", {}, el("b", {}, t(node.fate)), ": ", t(`why-${node.fate}`, { beams: found.num_beams })),
    el("p", { class: "facts" }, facts.map(([name, value]) => el("span", {}, `${name} `, el("b", {}, value)))),
    ends ? null : el("button", { type: "button", "data-live": true, "data-role": "from-here", on: { click: () => force(tokens) } }, t("fromHere")),
  ];
}

/** All modes of a hybrid, one after another. */
function modesCard(context, run, text, holder) {
  const { t } = context;
  const compare = async () => {
    const rows = [];
    for (const mode of run.modes) {
      const found = await context.run((signal) => ask(context, run, text, mode, signal));
      if (!found) return;
      rows.push([mode, found]);
      show(holder, modesTable(t, rows));
    }
  };
  return el("section", { class: "card", "data-role": "modes" }, el("div", { class: "row spread" }, el("h2", {}, t("modes")),
    el("button", { type: "button", "data-live": true, on: { click: compare } }, t("compareModes"))), el("p", { class: "muted" }, t("modesHint")), holder);
}

function modesTable(t, rows) {
  return el("div", { class: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, [t("mode"), t("passesName"), t("tokensName"), "ms", t("translation")].map((name, place) =>
      el("th", { scope: "col", class: place > 0 && place < 4 ? "figure" : "" }, name)))),
    el("tbody", {}, rows.map(([mode, found]) => el("tr", { "data-mode": mode },
      el("th", { scope: "row" }, t(mode)),
      el("td", { class: "figure" }, found.passes ?? "–"),
      el("td", { class: "figure" }, found.translations[0].tokens.length + 1),
      el("td", { class: "figure" }, (1000 * found.seconds).toFixed(0)),
      el("td", {}, found.translations[0].text))))));
}

function attentionCard(context, attention) {
  const { t } = context;
  const line = el("p", { class: "muted", "data-role": "weight", "aria-live": "polite" }, t("attentionHint"));
  const table = matrix(context, { rows: attention.target, columns: attention.source, weights: attention.weights }, {
    label: t("attention"),
    pick: (row, column) => show(line, t("weight", {
      target: pieceText(attention.target[row]).trim(), source: pieceText(attention.source[column]).trim(),
      share: (100 * attention.weights[row][column]).toFixed(1),
    })),
  });
  return el("section", { class: "card", "data-role": "attention" }, el("h2", {}, t("attention")), table, line);
}
