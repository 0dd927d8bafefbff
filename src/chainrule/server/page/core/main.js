/** The shell: tabs, language, theme, key, saving; it mounts the view that the address names. */

import { ApiFailure, get, keepKey, post, stream } from "./api.js";
import { el, show } from "./dom.js";
import { download, snapshot } from "./save.js";
import { addressOf, readAddress, writeAddress } from "./state.js";
import { applyTheme, chosenTheme, nextTheme } from "./theme.js";
import { LANGUAGES, chooseLanguage, chosenLanguage, translator } from "./words.js";
import { VIEWS } from "../views.js";

const main = document.getElementById("main");
const alertBox = document.getElementById("alert");
const status = document.getElementById("status");
let language = chosenLanguage();
let runs = null;
let mounted = null;

applyTheme(chosenTheme());

function announce(text) {
  status.textContent = text;
}

/** Run tasks: errors are shown, with a way to try again, and a new task ends the one before it. */
function makeRunner(t) {
  let current = null;
  const attempt = async (task, own) => {
    working(true);
    show(alertBox);
    try {
      return { result: await task(own.signal) };
    } catch (error) {
      return { error };
    } finally {
      if (own === current) working(false);
    }
  };
  const run = async (task) => {
    current?.abort();
    const own = (current = new AbortController());
    for (;;) {
      const { result, error } = await attempt(task, own);
      if (own.signal.aborted || error?.name === "AbortError") return undefined;
      if (!error) {
        announce(t("ready"));
        return result;
      }
      if (!(await mayRetry(error, t))) return undefined;
    }
  };
  return { run, stop: () => current?.abort() };
}

function working(now) {
  main.setAttribute("aria-busy", String(now));
  document.body.classList.toggle("working", now);
}

/** Show an error -> whether to try again, once that is known. */
function mayRetry(error, t) {
  if (!(error instanceof ApiFailure)) throw error;
  if (error.status === 401) return askKey(t);
  const known = error.status === 0 ? t("lost") : error.message;
  return new Promise((decide) => {
    show(alertBox, el("p", {}, known), el("button", { type: "button", on: { click: () => decide(true) } }, t("retry")));
  });
}

/** Ask for the API key -> whether one was given. */
function askKey(t) {
  const input = el("input", { type: "password", autocomplete: "off", required: true, "aria-label": t("key") });
  const cancel = el("button", { type: "button", on: { click: () => dialog.close() } }, t("cancel"));
  const form = el("form", { method: "dialog" }, el("p", {}, t("keyAsk")), input,
    el("p", { class: "row" }, el("button", { class: "main", value: "use" }, t("keyUse")), cancel));
  const dialog = el("dialog", { "aria-label": t("key") }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((decide) => {
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "use" && input.value.trim() !== "";
      if (given) keepKey(input.value.trim());
      dialog.remove();
      decide(given);
    });
  });
}

/** What a view may use. */
function contextFor(view, words, values, runner) {
  const t = translator(language, words);
  const kept = { ...values };
  const keep = (more, { push = false } = {}) => {
    Object.assign(kept, more);
    writeAddress(view.name, kept, push);
  };
  return {
    language, runs, t, announce, keep, values: kept,
    run: runner.run,
    stop: runner.stop,
    api: { get, post, stream },
    can: (verb) => runs.filter((one) => one.verbs.includes(verb)),
    of: (task) => runs.filter((one) => one.task === task),
    address: addressOf,
    go: (name, more) => {
      writeAddress(name, more, true);
      route();
    },
  };
}

async function route() {
  const { view: name, values } = readAddress();
  const view = VIEWS.find((one) => one.name === name) ?? VIEWS[0];
  const t = translator(language);
  const runner = makeRunner(t);
  mounted?.runner.stop();
  mounted?.unmount?.();
  mounted = { view, runner };
  drawTabs(view);
  if (runs === null) show(main, el("p", { class: "muted", "data-live": "" }, t("loading")));
  runs ??= (await runner.run((signal) => get("page/api/runs", signal)))?.runs ?? null;
  if (runs === null) {
    show(main);
    mounted = null;
    return;
  }
  const module = await import(new URL(view.module, new URL("../", import.meta.url)));
  if (mounted?.runner !== runner) return; // another view was chosen meanwhile
  document.title = `${view.title[language]} · chainrule`;
  const root = el("div", { class: `view ${view.name}` });
  show(main, el("h1", {}, view.title[language]), root);
  mounted.unmount = module.mount(root, contextFor(view, module.words, values, runner));
}

function drawTabs(current) {
  const nav = document.getElementById("views");
  nav.setAttribute("aria-label", translator(language)("views"));
  show(nav, VIEWS.map((view) => el("a", {
    href: `#${view.name}`,
    "aria-current": view === current ? "page" : null,
  }, view.title[language])));
}

function drawTools() {
  const t = translator(language);
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.getElementById("skip").textContent = t("skip");
  const theme = chosenTheme();
  const themeName = theme === "auto" ? t("themeAuto") : t(theme);
  const languages = el("select", { "aria-label": t("language"), on: { change: (event) => setLanguage(event.target.value) } },
    Object.entries(LANGUAGES).map(([code, name]) => el("option", { value: code, selected: code === language }, name)));
  const label = `${t("theme")}: ${themeName}`;
  show(document.getElementById("tools"),
    el("button", { type: "button", class: "quiet", id: "save", on: { click: save } }, t("save")),
    el("button", { type: "button", class: "quiet icon", id: "theme", title: label, "aria-label": label, on: { click: setTheme } },
      { auto: "◐", light: "☀", dark: "☾" }[theme]),
    languages);
}

function setTheme() {
  applyTheme(nextTheme(chosenTheme()));
  drawTools();
  document.getElementById("theme").focus();
}

function setLanguage(code) {
  language = code;
  chooseLanguage(code);
  drawTools();
  route();
}

function save() {
  const t = translator(language);
  const view = mounted?.view ?? VIEWS[0];
  const stamp = new Date().toISOString().slice(0, 19).replace("T", " ");
  const name = `chainrule-${view.name}-${stamp.replace(/\D/g, "")}.html`;
  const source = `${t("savedFrom", { address: location.href })} · ${stamp} UTC`;
  download(name, snapshot(main, { title: document.title, source, language: document.documentElement.lang }));
  announce(t("saved", { name }));
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", route);
drawTools();
route();
