/** A text whose tokens are coloured by bits, and the details of the token that is pointed at. */

import { el, rove } from "../core/dom.js";
import { noteFor } from "../core/save.js";
import { bitsText, countText, probabilityText, visible } from "./figures.js";

/** Bits at the top of the scale: mean and 2.5 standard deviations of the finite bits, at least 4. */
export function topOfScale(tokens) {
  const bits = tokens.map((one) => one.bits).filter((one) => one !== null);
  if (!bits.length) return 4;
  const mean = bits.reduce((sum, one) => sum + one, 0) / bits.length;
  const variance = bits.reduce((sum, one) => sum + (one - mean) ** 2, 0) / bits.length;
  return Math.max(4, Math.round(mean + 2.5 * Math.sqrt(variance)));
}

/** The share of the strongest colour for some bits. */
export function heatShare(bits, high) {
  return bits === null ? 1 : Math.min(1, Math.max(0, bits / high));
}

/** The text in order: parts with the indices of the tokens in them; tokens that share characters share a part. */
export function cellsOf(characters, tokens) {
  const groups = [];
  tokens.forEach((token, index) => {
    const last = groups.at(-1);
    if (last && (token.begin < last.end || last.begin === last.end)) {
      last.begin = Math.min(last.begin, token.begin);
      last.end = Math.max(last.end, token.end);
      last.tokens.push(index);
    } else groups.push({ begin: token.begin, end: token.end, tokens: [index] });
  });
  const cells = [];
  let place = 0;
  for (const { begin, end, tokens: inside } of groups) {
    if (begin > place) cells.push({ text: characters.slice(place, begin).join(""), tokens: [] });
    cells.push({ text: characters.slice(begin, end).join(""), tokens: inside });
    place = Math.max(place, end);
  }
  if (place < characters.length) cells.push({ text: characters.slice(place).join(""), tokens: [] });
  return cells;
}

/**
 * The coloured text as a list box: `pick(index)` is called when a token is pointed at or focused, `choose(index)` when
 * it is clicked or Enter is pressed.
 */
export function colouredText(context, { text, tokens }, high, { pick, choose, label }) {
  const characters = [...text]; // places count characters, not UTF-16 units
  const box = el("div", { class: "tokens card", role: "listbox", "aria-label": label });
  for (const cell of cellsOf(characters, tokens)) box.append(cell.tokens.length ? tokenPart(context, cell, tokens, high) : cell.text);
  const indexOf = (event) => {
    const part = event.target.closest(".token");
    return part ? Number(part.dataset.index) : null;
  };
  const select = (index) => {
    box.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    box.querySelector(`[data-index="${index}"]`)?.setAttribute("aria-selected", "true");
    pick(index);
  };
  const onToken = (act) => (event) => {
    const index = indexOf(event);
    if (index !== null) act(index);
  };
  box.addEventListener("mouseover", onToken(select));
  box.addEventListener("focusin", onToken(select));
  box.addEventListener("click", onToken((index) => {
    select(index);
    choose?.(index);
  }));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") onToken((index) => choose?.(index))(event);
  });
  rove(box, ".token");
  return box;
}

function tokenPart(context, cell, tokens, high) {
  const inside = cell.tokens.map((index) => tokens[index]);
  const bits = inside.some((one) => one.bits === null) ? null : inside.reduce((sum, one) => sum + one.bits, 0);
  const shown = cell.text.includes("\n") ? cell.text.replaceAll("\n", "↵\n") : cell.text || "·";
  const part = el("span", {
    class: "token",
    role: "option",
    tabindex: "-1",
    "aria-selected": "false",
    "aria-label": `${visible(cell.text || inside[0].token)}, ${bitsText(bits)} ${context.t("bits")}`,
    "data-index": cell.tokens[0],
    vars: { "--share": heatShare(bits, high).toFixed(3) },
  }, shown);
  noteFor(part, () => inside.map((one) => describe(context, one)).join("\n"));
  return part;
}

/** A token in one line, for saved files. */
function describe({ t }, token) {
  const best = token.best.map((one) => `${visible(one.token)} ${probabilityText(one.probability)}`).join(", ");
  return `${visible(token.token)}  ${bitsText(token.bits)} ${t("bits")}, p ${probabilityText(token.probability)}, ` +
    `${t("rank")} ${token.rank}${best ? ` · ${best}` : ""}`;
}

/** The colours and the bits that they stand for. */
export function heatLegend({ t }, high) {
  const steps = [0, 1, 2, 3, 4].map((step) => (high * step) / 4);
  const ramp = steps.map((bits, place) =>
    el("span", { vars: { "--share": (place / 4).toFixed(3) } }, `${Number(bits.toPrecision(3))}${place === 4 ? "+" : ""}`));
  return el("div", { class: "legend muted" }, t("bits"), el("span", { class: "ramp" }, ramp));
}

/** The details of a token: rows of [name, value] may be added. */
export function tokenDetails(context, token, more = []) {
  const { t, language } = context;
  const rows = [
    [t("bits"), bitsText(token.bits)],
    [t("probability"), probabilityText(token.probability)],
    [t("rank"), countText(token.rank, language)],
    ...(token.entropy === null || token.entropy === undefined ? [] : [[t("entropy"), `${bitsText(token.entropy)} ${t("bits")}`]]),
    ...more,
  ];
  return el("div", { class: "details" },
    el("h2", {}, visible(token.token)),
    el("dl", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    token.best?.length ? [el("p", { class: "muted" }, t("instead")), barList(token.best)] : null);
}

/** Tokens with their probabilities as bars, and a note where there is one. */
export function barList(alternatives) {
  return el("ul", { class: "bars" }, alternatives.map((one) =>
    el("li", { class: "bar", vars: { "--share": one.probability.toFixed(4) } },
      el("i"), el("span", {}, visible(one.token), one.note ? el("small", {}, ` ${one.note}`) : null),
      el("span", {}, probabilityText(one.probability)))));
}
