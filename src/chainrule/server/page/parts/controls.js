/** Controls that views share. */

import { el } from "../core/dom.js";

/** A labelled control. */
export function field(label, control, kind = "") {
  return el("label", { class: `field ${kind}` }, el("span", {}, label), control);
}

/** A menu of runs; `change` gets the name. */
export function runMenu(context, runs, chosen, change) {
  const known = runs.some((one) => one.name === chosen) ? chosen : runs[0]?.name;
  const options = runs.map((one) =>
    el("option", { value: one.name, selected: one.name === known }, one.name === one.model ? one.name : `${one.name} · ${one.model}`));
  const menu = el("select", { "data-role": "run", on: { change: () => change(menu.value) } }, options);
  return field(context.t("run"), menu);
}

/** Check boxes of runs; `change` gets the names that are chosen. */
export function runBoxes(context, runs, chosen, change) {
  const boxes = runs.map((one) => el("input", { type: "checkbox", value: one.name, checked: chosen.includes(one.name) }));
  const names = () => boxes.filter((box) => box.checked).map((box) => box.value);
  const labels = runs.map((one, place) => el("label", {}, boxes[place], `${one.name}${one.name === one.model ? "" : ` · ${one.model}`}`));
  return el("fieldset", { on: { change: () => change(names()) } }, el("legend", {}, context.t("runs")),
    el("div", { class: "choices" }, labels));
}

/** A text area; `submit` is called with Ctrl+Enter, Cmd+Enter and by the button of `submitButton`. */
export function textBox(context, value, submit, { rows = 4, label = null } = {}) {
  const box = el("textarea", {
    rows,
    value,
    spellcheck: "false",
    "data-role": "text",
    on: {
      keydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          submit();
        }
      },
    },
  });
  return { box, element: field(label ?? context.t("text"), box, "grow") };
}

/** The button that shows the result. */
export function submitButton(context, submit, label = null) {
  return el("button", { type: "button", class: "main", title: "Ctrl+Enter", "data-live": true, "data-role": "show", on: { click: submit } },
    label ?? context.t("show"));
}

/** What a view shows if no run can do it: `how` says how to make one. */
export function emptyView(context, how) {
  return el("p", { class: "card empty" }, context.t("noRun", { how }));
}

/** A box that scrolls sideways where its content is wider than the screen, also with the keyboard. */
export function wideBox(label, ...content) {
  return el("div", { class: "wide", role: "region", tabindex: "0", "aria-label": label }, content);
}

/** A slider with its value; `shown` formats it. */
export function slider(label, { min, max, step, value }, shown, change) {
  const output = el("b", {}, shown(value)); // not an output element: the label would name that instead of the slider
  const input = el("input", {
    type: "range", min, max, step, value,
    on: {
      input: () => {
        output.textContent = shown(input.valueAsNumber);
        change(input.valueAsNumber);
      },
    },
  });
  input.setAttribute("aria-valuetext", shown(value));
  input.addEventListener("input", () => input.setAttribute("aria-valuetext", shown(input.valueAsNumber)));
  return el("label", { class: "field slider" }, el("span", {}, label, " ", output), input);
}
