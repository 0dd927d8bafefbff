// Sorts and filters tables and picks the series of charts. The report reads without it.
"use strict";
(() => {
  const make = (name, properties = {}) => Object.assign(document.createElement(name), properties);
  document.body.classList.add("live");

  const value = (row, place) => {
    const cell = row.cells[place];
    const given = cell.dataset.value;
    if (given === undefined) return cell.textContent.toLowerCase();
    return given === "" ? NaN : Number(given);
  };
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en") : a - b);
  const sort = (heading) => {
    const table = heading.closest("table");
    const place = heading.cellIndex;
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [value(row, place), row]);
    const empty = rows.filter(([one]) => Number.isNaN(one));
    const full = rows.filter(([one]) => !Number.isNaN(one)).sort(([a], [b]) => (up ? order(a, b) : order(b, a)));
    table.tBodies[0].append(...[...full, ...empty].map(([, row]) => row));
  };
  for (const button of document.querySelectorAll("th > button")) {
    button.addEventListener("click", () => sort(button.parentNode));
  }

  for (const table of document.querySelectorAll("table.filtered")) {
    const field = make("input", { type: "search", className: "filter", placeholder: "filter rows" });
    field.setAttribute("aria-label", "filter rows");
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    table.parentNode.before(field);
  }

  const seriesOf = (mark) => (mark.getAttribute("aria-label") || "").match(/(?:^|; )series: (.*?)(?:; |$)/)?.[1];
  for (const figure of document.querySelectorAll("figure:not([id])")) {
    const marks = [...figure.querySelectorAll("[aria-label]")].map((mark) => [seriesOf(mark), mark]).filter(([name]) => name);
    const names = [...new Set(marks.map(([name]) => name))];
    if (names.length < 2 || !figure.querySelector(".role-legend")) continue;
    const choices = make("div", { className: "pick" });
    for (const name of names) {
      const label = make("label");
      const box = make("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => {
        for (const [own, mark] of marks) if (own === name) mark.style.display = box.checked ? "" : "none";
      });
      label.append(box, " ", name);
      choices.append(label);
    }
    figure.append(choices);
  }
})();
