/** A chart of lines: axes, a legend, and the values at the place that is pointed at. Long lines keep their outline. */

import { el, show, svg } from "../core/dom.js";
import { shortText } from "./figures.js";

const SIZE = { width: 960, height: 380, left: 58, right: 16, top: 14, bottom: 40 };
const INNER = { width: SIZE.width - SIZE.left - SIZE.right, height: SIZE.height - SIZE.top - SIZE.bottom };

/** At most four points for each pixel: first, smallest, largest, last. */
export function outline(points, columns) {
  if (points.length <= 4 * columns) return points;
  const low = points[0].x;
  const width = (points.at(-1).x - low) / columns || 1;
  const kept = [];
  let begin = 0;
  for (let column = 1; begin < points.length; column += 1) {
    let end = begin;
    const edge = column >= columns ? Infinity : low + column * width;
    let [least, most] = [begin, begin];
    while (end < points.length && points[end].x <= edge) {
      if (points[end].y < points[least].y) least = end;
      if (points[end].y > points[most].y) most = end;
      end += 1;
    }
    if (end > begin) kept.push(...new Set([begin, Math.min(least, most), Math.max(least, most), end - 1]));
    begin = end;
  }
  return kept.map((place) => points[place]);
}

/** Round values between two bounds, about `count` of them. */
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

/**
 * @param {{name: string, colour: number, dashed: boolean, points: {x: number, y: number}[]}[]} series
 * @param {{label: string, x: string, y: string, logX: boolean, value: (y: number) => string, at: (x: number) => string}} options
 */
export function lineChart(series, { label, x, y, logX = false, value, at }) {
  const drawn = series.map((one) => ({ ...one, points: one.points.filter((point) => Number.isFinite(point.y) && (!logX || point.x > 0)) }))
    .filter((one) => one.points.length);
  if (!drawn.length) return null;
  const all = drawn.flatMap((one) => outline(one.points, INNER.width));
  const scale = scales(all, logX);
  const lines = drawn.map((one) => line(one, scale));
  const marker = svg("g", { class: "marker", hidden: true });
  const readout = el("div", { class: "readout muted", "aria-live": "polite" });
  const drawing = svg("svg", {
    class: "chart", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", tabindex: "0",
    "aria-label": `${label}: ${drawn.map((one) => `${one.name} ${value(one.points.at(-1).y)}`).join(", ")}`,
  }, grid(scale, x, y, logX), lines, marker);
  point(drawing, drawn, scale, marker, (place, found) => show(readout, el("b", {}, at(place)), found.map(({ one, near }) =>
    el("span", { class: "entry" }, swatch(one), `${one.name} `, el("b", {}, value(near.y))))));
  return el("figure", { class: "chart-box" }, el("div", { class: "wide" }, drawing), readout);
}

/** The line of a series in a legend. */
export function swatch(one) {
  return svg("svg", { class: `swatch series-${one.colour}`, viewBox: "0 0 22 8", "aria-hidden": "true" },
    svg("path", { class: one.dashed ? "line dashed" : "line", d: "M0 4H22" }));
}

function scales(points, logX) {
  const bounds = (values) => values.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
  const [left, right] = bounds(points.map((one) => (logX ? Math.log10(one.x) : one.x)));
  const [low, high] = bounds(points.map((one) => one.y));
  const pad = (high - low) * 0.05 || 0.5;
  const [bottom, top] = [low - pad, high + pad];
  const width = right - left || 1;
  return {
    left, right, bottom, top,
    x: (value) => SIZE.left + (((logX ? Math.log10(value) : value) - left) / width) * INNER.width,
    y: (value) => SIZE.top + (1 - (value - bottom) / (top - bottom)) * INNER.height,
    back: (pixel) => {
      const found = left + ((pixel - SIZE.left) / INNER.width) * width;
      return logX ? 10 ** found : found;
    },
  };
}

function grid(scale, x, y, logX) {
  const bottom = SIZE.top + INNER.height;
  const across = logX ? decades(scale.left, scale.right) : ticks(scale.left, scale.right, 8);
  return svg("g", { class: "axes", "aria-hidden": "true" },
    ticks(scale.bottom, scale.top, 6).map((one) => [
      svg("path", { class: "grid", d: `M${SIZE.left} ${scale.y(one)}H${SIZE.left + INNER.width}` }),
      svg("text", { class: "y", x: SIZE.left - 8, y: scale.y(one) + 4 }, shortText(one))]),
    across.map((one) => [
      svg("path", { class: "grid", d: `M${scale.x(one)} ${SIZE.top}V${bottom}` }),
      svg("text", { class: "x", x: scale.x(one), y: bottom + 18 }, shortText(one))]),
    svg("text", { class: "title", x: SIZE.left + INNER.width / 2, y: SIZE.height - 4 }, x),
    svg("text", { class: "title y-title", transform: `translate(13 ${SIZE.top + INNER.height / 2}) rotate(-90)` }, y));
}

function decades(left, right) {
  const found = [];
  for (let power = Math.floor(left); power <= right; power += 1) {
    for (const factor of right - left > 3 ? [1] : [1, 2, 5]) {
      const value = factor * 10 ** power;
      if (Math.log10(value) >= left - 1e-9 && Math.log10(value) <= right + 1e-9) found.push(value);
    }
  }
  return found;
}

function line(one, scale) {
  const kept = outline(one.points, INNER.width);
  const d = kept.map((at, place) => `${place ? "L" : "M"}${scale.x(at.x).toFixed(1)} ${scale.y(at.y).toFixed(1)}`).join("");
  const dots = kept.length <= 60 ? kept.map((at) => svg("circle", { cx: scale.x(at.x), cy: scale.y(at.y), r: 2.6 })) : [];
  return svg("g", { class: `series series-${one.colour}`, "data-series": one.name, "data-points": one.points.length },
    svg("path", { class: one.dashed ? "line dashed" : "line", d }), dots);
}

/** Pointer and arrow keys move a marker along the x axis. */
function point(drawing, drawn, scale, marker, tell) {
  let place = SIZE.left + INNER.width;
  const move = (pixel) => {
    place = Math.max(SIZE.left, Math.min(SIZE.left + INNER.width, pixel));
    const x = scale.back(place);
    const found = drawn.map((one) => ({ one, near: nearest(one.points, x) })).sort((a, b) => a.near.y - b.near.y);
    marker.removeAttribute("hidden");
    show(marker, svg("path", { d: `M${place} ${SIZE.top}V${SIZE.top + INNER.height}` }), found.map(({ one, near }) =>
      svg("circle", { class: `series-${one.colour}`, cx: scale.x(near.x), cy: scale.y(near.y), r: 4 })));
    tell(x, found);
  };
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    move(((event.clientX - box.left) / box.width) * SIZE.width);
  });
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    move(place + step * (INNER.width / 60));
  });
}

function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].x < x) low = middle;
    else high = middle;
  }
  return Math.abs(points[low].x - x) <= Math.abs(points[high].x - x) ? points[low] : points[high];
}
