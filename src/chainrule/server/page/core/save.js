/** "Save this view": the visible page as one HTML file without scripts, which asks the network for nothing. */

const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
const EMPTY = new Set(["BR", "IMG", "INPUT", "HR"]);
const notes = new WeakMap();

/** Give an element a text for the saved file, where it is the element's title: there is no script to show details. */
export function noteFor(element, makeText) {
  notes.set(element, makeText);
}

/** The HTML of the saved file. */
export function snapshot(root, { title, source, language }) {
  const theme = document.documentElement.dataset.theme;
  const styles = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText));
  return [
    "<!doctype html>",
    `<html lang="${escape(language)}" data-theme="${escape(theme)}"><head><meta charset="utf-8">`,
    `<meta http-equiv="Content-Security-Policy" content="${POLICY}">`,
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    `<title>${escape(title)}</title><style>${styles.join("\n").replaceAll("</", "<\\/")}</style></head>`,
    `<body class="saved"><main>${[...root.childNodes].map(serialise).join("")}</main>`,
    `<footer class="source">${escape(source)}</footer></body></html>\n`,
  ].join("\n");
}

/** Offer a text as a file. */
export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/html" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function escape(text) {
  return text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);
}

/** A node as HTML: controls become what they show, elements with `data-live` are left out. */
function serialise(node) {
  if (node.nodeType === Node.TEXT_NODE) return escape(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE || node.dataset.live !== undefined || node.tagName === "SCRIPT") return "";
  if (node.hidden) return "";
  if (node.tagName === "TEXTAREA") return `<pre class="given">${escape(node.value)}</pre>`;
  if (node.tagName === "SELECT") return `<b>${escape([...node.selectedOptions].map((one) => one.text).join(", "))}</b>`;
  if (node.tagName === "INPUT") return `<b>${escape(node.type === "checkbox" ? (node.checked ? "✓" : "–") : node.value)}</b>`;
  if (node.tagName === "CANVAS") return `<img alt="${escape(node.getAttribute("aria-label") ?? "")}" src="${node.toDataURL()}">`;
  const name = node.localName === "a" || node.localName === "button" ? "span" : node.localName;
  const head = `<${name}${attributes(node)}>`;
  return EMPTY.has(node.tagName) ? head : `${head}${[...node.childNodes].map(serialise).join("")}</${name}>`;
}

function attributes(node) {
  const kept = [...node.attributes].filter(({ name }) => !/^on|^href$|^tabindex$|^id$|^for$/.test(name));
  const makeText = notes.get(node);
  const title = makeText ? [{ name: "title", value: makeText() }] : [];
  return [...kept, ...title].map(({ name, value }) => ` ${name}="${escape(value)}"`).join("");
}
