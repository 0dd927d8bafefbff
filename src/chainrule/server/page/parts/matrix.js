/** A matrix of weights as a table: rows read columns. */

import { el, rove } from "../core/dom.js";
import { pieceText } from "./figures.js";

/**
 * @param {object} context
 * @param {{rows: string[], columns: string[], weights: number[][]}} matrix
 * @param {{label: string, pick: (row: number, column: number) => void}} options
 */
export function matrix(context, { rows, columns, weights }, { label, pick }) {
  const head = el("tr", {}, el("td"), columns.map((piece) => el("th", { scope: "col" }, el("span", {}, pieceText(piece).trim() || "␣"))));
  const body = rows.map((piece, row) =>
    el("tr", {}, el("th", { scope: "row" }, pieceText(piece).trim() || "␣"), columns.map((source, column) => cell(weights[row][column], row, column))));
  const table = el("table", { class: "matrix", "aria-label": label }, el("thead", {}, head), el("tbody", {}, body));
  const show = (event) => {
    const found = event.target.closest("td[data-row]");
    if (!found) return;
    const row = Number(found.dataset.row);
    const column = Number(found.dataset.column);
    for (const other of table.querySelectorAll(".lit")) other.classList.remove("lit");
    table.tHead.rows[0].cells[column + 1].classList.add("lit");
    table.tBodies[0].rows[row].cells[0].classList.add("lit");
    pick(row, column);
  };
  table.addEventListener("mouseover", show);
  table.addEventListener("focusin", show);
  rove(table, "td[data-row]", { columns: columns.length });
  return el("div", { class: "wide" }, table);
}

function cell(weight, row, column) {
  return el("td", { "data-row": row, "data-column": column, tabindex: "-1", vars: { "--share": weight.toFixed(4) } },
    el("span", {}, weight >= 0.005 ? weight.toFixed(2).replace(/^0/, "") : ""));
}
