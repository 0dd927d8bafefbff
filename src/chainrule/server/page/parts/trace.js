/** Small charts of values along tokens, as SVG; chart.js draws curves of trainings. */

import { el, svg } from "../core/dom.js";

const WIDTH = 640;
const HEIGHT = 150;
const LEFT = 40;
const BOTTOM = 26;
const TOP = 10;

/**
 * Lines over common positions.
 * @param {Array<{name: string, values: number[]}>} series
 * @param {{labels: string[], low?: number, high?: number, caption?: string, points?: boolean}} options
 */
export function traceChart(series, { labels, low = null, high = null, caption = "", points = false }) {
  const all = series.flatMap((one) => one.values).filter(Number.isFinite);
  const bottom = low ?? Math.min(...all);
  const top = high ?? (Math.max(...all, bottom + 1e-9) || 1);
  const x = (place) => LEFT + ((WIDTH - LEFT - 10) * (labels.length > 1 ? place / (labels.length - 1) : 0.5));
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - bottom) / (top - bottom));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "trace", role: "img", "aria-label": describe(series, labels) },
    grid(bottom, top, y), ticks(labels, x),
    series.map((one, place) => line(one, place, x, y, points, labels)));
  const names = series.map((one, place) => el("span", { class: `key line${place}` }, one.name));
  return el("figure", {}, picture, el("figcaption", { class: "muted row" }, names, caption ? el("span", {}, `→ ${caption}`) : null));
}

function grid(bottom, top, y) {
  return [bottom, (bottom + top) / 2, top].map((value) => [
    svg("line", { x1: LEFT, x2: WIDTH - 10, y1: y(value), y2: y(value), class: "grid" }),
    svg("text", { x: LEFT - 6, y: y(value) + 4, class: "tick end" }, Number(value.toPrecision(2))),
  ]);
}

function ticks(labels, x) {
  const room = Math.max(1, Math.ceil((labels.length * 34) / (WIDTH - LEFT)));
  return labels.map((label, place) => (labels.length - 1 - place) % room ? null
    : svg("text", { x: x(place), y: HEIGHT - 8, class: "tick middle" }, label.length > 6 ? `${label.slice(0, 5)}…` : label)).filter(Boolean);
}

function line({ name, values }, number, x, y, points, labels) {
  const finite = values.map((value, place) => [x(place), y(value), value, labels[place]]).filter(([, , value]) => Number.isFinite(value));
  const path = finite.map(([left, up], place) => `${place ? "L" : "M"}${left.toFixed(1)} ${up.toFixed(1)}`).join("");
  const dots = points ? finite.map(([left, up, value, label]) =>
    svg("circle", { cx: left, cy: up, r: 4, class: `dot line${number}` }, svg("title", {}, `${label}: ${value.toFixed(2)}`))) : [];
  return [svg("path", { d: path, class: `line line${number}` }, svg("title", {}, name)), dots];
}

/** The chart in words: the last value of each line. */
function describe(series, labels) {
  return series.map(({ name, values }) => `${name}: ${values.at(-1)?.toFixed(3)} (${labels.at(-1)})`).join("; ");
}
