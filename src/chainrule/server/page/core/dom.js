/** Elements. A text is always a text: nothing on this page parses markup. */

/**
 * An element.
 * @param {string} name
 * @param {object} given Attributes; `on` has listeners, `vars` custom properties of the style, `value`, `checked` and
 *   `disabled` are properties; null and false leave an attribute out.
 * @param {...(Node|string|number|null|Array)} content
 */
export function el(name, given = {}, ...content) {
  return fill(document.createElement(name), given, content);
}

/** An SVG element, as `el`. */
export function svg(name, given = {}, ...content) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), given, content);
}

const PROPERTIES = new Set(["value", "checked", "disabled", "indeterminate"]);

function fill(node, given, content) {
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (key === "vars") for (const [one, to] of Object.entries(value)) node.style.setProperty(one, to);
    else if (PROPERTIES.has(key) && key in node) node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...content.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

/** Replace everything inside an element. */
export function show(node, ...content) {
  node.replaceChildren(...content.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

/** Draw the inside of an element anew; the control that had the focus has it again if there is one like it. */
export function redrawn(node, draw) {
  const before = node.contains(document.activeElement) ? likeness(document.activeElement) : null;
  draw();
  if (before === null || node.contains(document.activeElement)) return;
  [...node.querySelectorAll("button, select, input, [tabindex]")].find((one) => likeness(one) === before)?.focus();
}

function likeness(control) {
  const { sort } = control.dataset ?? {};
  return [control.tagName, sort ?? control.getAttribute("aria-label") ?? control.textContent, control.type === "checkbox" ? control.value : ""].join("|");
}

/** Roving focus: of the items inside `box` that match `selector`, one is in the tab order; arrow keys move it. */
export function rove(box, selector, { columns = null } = {}) {
  const items = () => [...box.querySelectorAll(selector)];
  const focus = (item) => {
    for (const other of box.querySelectorAll(`${selector}[tabindex="0"]`)) other.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  };
  box.addEventListener("keydown", (event) => {
    const all = items();
    const place = all.indexOf(document.activeElement);
    if (place < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const next = target(event.key, all, place, columns);
    if (next === null) return;
    event.preventDefault();
    focus(all[next]);
  });
  const first = items()[0];
  if (first && !box.querySelector(`${selector}[tabindex="0"]`)) first.tabIndex = 0;
}

function target(key, all, place, columns) {
  const inside = (index) => Math.max(0, Math.min(all.length - 1, index));
  if (key === "ArrowRight") return inside(place + 1);
  if (key === "ArrowLeft") return inside(place - 1);
  if (key === "Home") return 0;
  if (key === "End") return all.length - 1;
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const step = key === "ArrowDown" ? 1 : -1;
  if (columns !== null) return inside(place + step * columns);
  return nearestRow(all, place, step);
}

/** In a flowing text: the item of the next or previous row whose middle is nearest. */
function nearestRow(all, place, step) {
  const here = all[place].getBoundingClientRect();
  const middle = (here.left + here.right) / 2;
  let row = null;
  let best = null;
  for (let index = place + step; index >= 0 && index < all.length; index += step) {
    const box = all[index].getBoundingClientRect();
    if (Math.abs(box.top - here.top) < here.height / 2) continue;
    if (row !== null && Math.abs(box.top - row) > here.height / 2) break;
    row ??= box.top;
    const distance = Math.abs((box.left + box.right) / 2 - middle);
    if (best === null || distance < best.distance) best = { index, distance };
  }
  return best === null ? place : best.index;
}
