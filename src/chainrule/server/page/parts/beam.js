/** The beam as a tree: a column for each step, its candidates best first, an edge to what each one continues. */

import { el, svg } from "../core/dom.js";
import { noteFor } from "../core/save.js";
import { pieceText } from "./figures.js";

const WIDTH = 104; // of a column
const HEIGHT = 27; // of a row
const BOX = { width: 82, height: 21 };
const SHOWN = 10; // characters of a piece

export const PRUNED = new Set(["outranked", "ended-late", "stopped"]);

/** The indices of the nodes from the prefix to a node, that one included. */
export function pathTo(nodes, index) {
  const path = [];
  for (let place = index; place !== null; place = nodes[place].parent) path.unshift(place);
  return path;
}

/** log p of the last token of a node alone. */
export function stepLogProb(nodes, index) {
  const { parent, log_prob: whole } = nodes[index];
  return parent === null ? whole : whole - nodes[parent].log_prob;
}

/**
 * The tree. `pick(index)` is called when a node is pointed at or focused; `choose(index)` for a click and Enter.
 * `pruned` false leaves pruned branches out; `marked` is the node whose path is drawn strong.
 */
export function beamTree({ t }, tree, { pick, choose, pruned = true, marked = null, label }) {
  const shown = tree.nodes.map((node, index) => ({ ...node, index })).filter((node) => pruned || !PRUNED.has(node.fate));
  const rows = new Map(); // of each step, the number of nodes so far
  const places = new Map();
  for (const node of shown) {
    const row = rows.get(node.length) ?? 0;
    rows.set(node.length, row + 1);
    places.set(node.index, { x: node.length * WIDTH, y: 16 + row * HEIGHT });
  }
  const height = 20 + Math.max(1, ...rows.values()) * HEIGHT;
  const width = 24 + (Math.max(0, ...rows.keys()) + 1) * WIDTH;
  const root = { x: 0, y: 16 };
  const strong = new Set(marked === null ? [] : pathTo(tree.nodes, marked));
  const edges = shown.map((node) => edge(node, node.parent === null ? root : places.get(node.parent), places.get(node.index), strong));
  const boxes = shown.map((node) => box(t, tree, node, places.get(node.index), strong));
  const ranks = shown.filter((node) => node.rank).map((node) => rankMark(node.rank, places.get(node.index)));
  const start = svg("g", { class: "node start", transform: `translate(${root.x} ${root.y})` },
    svg("rect", { x: 0, y: 0, width: BOX.width, height: BOX.height, rx: 6 }),
    svg("text", { x: BOX.width / 2, y: 15 }, tree.prefix.length ? t("prefixNode", { count: tree.prefix.length }) : t("startNode")));
  const drawing = svg("svg", {
    class: "beam-tree", role: "listbox", "aria-label": label, viewBox: `0 0 ${width} ${height}`, width, height,
  }, svg("g", { "aria-hidden": "true" }, edges, start), boxes, svg("g", { "aria-hidden": "true", class: "ranks" }, ranks));
  listen(drawing, tree.nodes, shown, { pick, choose });
  return el("div", { class: "wide tree", tabindex: "-1" }, drawing);
}

function edge(node, from, to, strong) {
  const begin = { x: from.x + BOX.width, y: from.y + BOX.height / 2 };
  const end = { x: to.x, y: to.y + BOX.height / 2 };
  const middle = (begin.x + end.x) / 2;
  const kind = strong.has(node.index) ? "strong" : PRUNED.has(node.fate) ? "pruned" : "";
  return svg("path", { class: `edge ${kind}`, d: `M${begin.x} ${begin.y}C${middle} ${begin.y} ${middle} ${end.y} ${end.x} ${end.y}` });
}

function box(t, tree, node, place, strong) {
  const text = pieceText(node.piece).trim() || "␣";
  const kind = [node.fate, PRUNED.has(node.fate) ? "pruned" : "", strong.has(node.index) ? "strong" : ""].join(" ");
  const name = `${t("step", { step: node.length })}: ${text}, ${t("score")} ${node.score.toFixed(3)}, ${t(node.fate)}${node.rank ? `, ${t("rank")} ${node.rank}` : ""}`;
  const characters = [...text];
  const part = svg("g", {
    class: `node ${kind}`, role: "option", tabindex: "-1", "aria-selected": "false", "aria-label": name,
    "data-index": node.index, transform: `translate(${place.x} ${place.y})`,
  },
  svg("rect", { x: 0, y: 0, width: BOX.width, height: BOX.height, rx: 6 }),
  svg("text", { x: BOX.width / 2, y: 15 }, characters.length > SHOWN ? `${characters.slice(0, SHOWN - 1).join("")}…` : text));
  noteFor(part, () => name);
  return part;
}

function rankMark(rank, { x, y }) {
  return [svg("circle", { cx: x + BOX.width, cy: y + 2, r: 7.5 }), svg("text", { x: x + BOX.width, y: y + 5.5 }, rank)];
}

/** Pointer and keys: left to the parent, right to the best continuation, up and down within the step. */
function listen(drawing, nodes, shown, { pick, choose }) {
  const parts = new Map([...drawing.querySelectorAll("[data-index]")].map((part) => [Number(part.dataset.index), part]));
  const indexOf = (event) => {
    const part = event.target.closest("[data-index]");
    return part ? Number(part.dataset.index) : null;
  };
  const select = (index) => {
    drawing.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    parts.get(index).setAttribute("aria-selected", "true");
    pick(index);
  };
  const on = (act) => (event) => {
    const index = indexOf(event);
    if (index !== null) act(index);
  };
  drawing.addEventListener("mouseover", on(select));
  drawing.addEventListener("focusin", on(select));
  drawing.addEventListener("click", on((index) => {
    select(index);
    choose(index);
  }));
  const next = (index, key) => {
    const inStep = shown.filter((node) => node.length === nodes[index].length).map((node) => node.index);
    const at = inStep.indexOf(index);
    if (key === "ArrowLeft") return nodes[index].parent;
    if (key === "ArrowRight") return shown.find((node) => node.parent === index)?.index ?? null;
    if (key === "ArrowDown") return inStep[at + 1] ?? null;
    if (key === "ArrowUp") return inStep[at - 1] ?? null;
    if (key === "Home") return shown[0].index;
    return key === "End" ? shown.at(-1).index : null;
  };
  drawing.addEventListener("keydown", (event) => {
    const index = indexOf(event);
    if (index === null || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(index);
      return;
    }
    const to = next(index, event.key);
    if (to === null || to === undefined) return;
    event.preventDefault();
    for (const part of parts.values()) part.setAttribute("tabindex", "-1");
    parts.get(to).setAttribute("tabindex", "0");
    parts.get(to).focus();
  });
  if (shown.length) parts.get(shown[0].index).setAttribute("tabindex", "0");
}
