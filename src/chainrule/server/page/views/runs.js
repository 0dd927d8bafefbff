/** Runs: a leaderboard of the served folders, learning curves that grow while a training runs, configurations. */

import { el, redrawn, show } from "../core/dom.js";
import { lineChart, swatch } from "../parts/chart.js";
import { countText, shortText, timeText } from "../parts/figures.js";
import { words } from "./runs.words.js";

export { words };

const EVERY = 1500; // milliseconds between looks at a running training
const COLOURS = 8;
const MEASURED = new Set(["bits_per_byte", "perplexity", "bleu", "accuracy", "f1"]);
const MOST_POINTS = 20000; // of a curve in the browser

/** Columns: a key, the value that is sorted by, its text, and whether the smallest comes first. */
function columns({ t, language }) {
  const valid = (name) => (run) => run.valid?.[name];
  const fixed = (digits) => (value) => value.toFixed(digits);
  const percent = (value) => `${(100 * value).toFixed(1)}%`;
  const whole = (value) => countText(value, language);
  return [
    { key: "bits_per_byte", value: valid("bits_per_byte"), text: fixed(3), ascending: true },
    { key: "perplexity", value: valid("perplexity"), text: (value) => shortText(value), ascending: true },
    { key: "bleu", value: valid("bleu"), text: fixed(1) },
    { key: "accuracy", value: valid("accuracy"), text: percent },
    { key: "f1", value: (run) => run.valid?.f1 ?? run.valid?.macro_f1, text: percent },
    { key: "parameters", value: (run) => run.parameters, text: shortText, ascending: true },
    { key: "seconds", value: (run) => run.seconds, text: timeText, ascending: true },
    { key: "tokens", value: (run) => run.tokens, text: shortText },
    { key: "tokens_per_second", value: (run) => run.tokens_per_second, text: shortText },
    { key: "peak_memory", value: (run) => run.peak_memory, text: (value) => `${shortText(value)}B`, ascending: true },
    { key: "steps", value: (run) => run.steps || undefined, text: whole, ascending: true },
  ].map((column) => ({ ...column, title: t(`c-${column.key}`), hint: t(`h-${column.key}`) }));
}

export function mount(root, context) {
  const state = { runs: [], logs: new Map(), measured: new Map(), ended: false };
  const table = el("div");
  const curves = el("div");
  const details = el("div");
  show(root, el("section", { class: "card" }, table), el("section", { class: "card", "data-role": "curves" }, curves), details);
  const redraw = () => {
    redrawn(table, () => drawTable(table, context, state, redraw, details));
    redrawn(curves, () => drawCurves(curves, context, state, redraw));
  };
  load(context, state, redraw).then((found) => {
    if (found && context.values.run) showDetails(details, context, context.values.run);
  });
  const timer = setInterval(() => watch(context, state, redraw), EVERY);
  return () => {
    state.ended = true;
    clearInterval(timer);
  };
}

async function load(context, state, redraw) {
  const found = await context.run((signal) => context.api.get("page/api/leaderboard", signal));
  if (!found || state.ended) return false;
  state.runs = found.runs;
  redraw();
  Promise.all(found.runs.map((run) => follow(context, state, run))).then(() => state.ended || redraw());
  return true;
}

/** Read what a run has logged since the last time -> whether there is anything new. */
async function follow(context, state, run) {
  if (run.status === "damaged") return false;
  const known = state.logs.get(run.name) ?? { offset: 0, records: [] };
  const query = new URLSearchParams({ run: run.name, offset: known.offset });
  const tail = await context.api.get(`page/api/metrics?${query}`);
  const records = tail.restarted ? tail.records : [...known.records, ...tail.records];
  const changed = tail.status !== run.status || tail.records.length > 0;
  run.status = tail.status;
  state.logs.set(run.name, { offset: tail.offset, records: records.slice(-MOST_POINTS) });
  return changed;
}

/** Look at the trainings that run now, and at runs that were begun meanwhile. */
async function watch(context, state, redraw) {
  if (state.ended || state.watching || document.hidden) return;
  state.watching = true;
  try {
    const { runs } = await context.api.get("page/api/leaderboard");
    const before = new Map(state.runs.map((run) => [run.name, run]));
    let changed = runs.length !== state.runs.length;
    for (const run of runs) {
      const old = before.get(run.name);
      changed ||= !old || old.status !== run.status;
      if (!old || old.status === "training" || run.status === "training") changed = (await follow(context, state, run)) || changed;
    }
    state.runs = runs;
    if (changed && !state.ended) redraw();
  } catch (error) {
    if (error.status === undefined) throw error; // the next look may succeed
  } finally {
    state.watching = false;
  }
}

/* The leaderboard */

/** Runs that can be compared: of one task, trained on the same data. */
function groupOf(run) {
  return run.task ? `${run.task} · ${run.data.join(", ")}` : "";
}

function groups(runs) {
  return [...new Set(runs.map(groupOf).filter(Boolean))].sort();
}

/** The group whose curves are drawn: the chosen one, else that of a running training, else the largest. */
function drawnGroup(values, logged) {
  const known = groups(logged);
  if (known.includes(values.group)) return values.group;
  const running = logged.find((run) => run.status === "training");
  if (running) return groupOf(running);
  const size = (group) => logged.filter((run) => groupOf(run) === group).length;
  return known.sort((a, b) => size(b) - size(a))[0];
}

function sorted(context, state, shown) {
  const { sort = "bits_per_byte", order = "" } = context.values;
  const column = shown.find((one) => one.key === sort);
  const runs = state.runs.filter((run) => !context.values.group || groupOf(run) === context.values.group);
  if (!column) return runs.sort((a, b) => a.name.localeCompare(b.name) * (order === "down" ? -1 : 1));
  const sign = (order || (column.ascending ? "up" : "down")) === "up" ? 1 : -1;
  const value = (run) => column.value(run);
  return runs.sort((a, b) => {
    const [one, two] = [value(a), value(b)];
    if (one === undefined || two === undefined) return (one === undefined) - (two === undefined) || a.name.localeCompare(b.name);
    return sign * (one - two);
  });
}

function drawTable(holder, context, state, redraw, details) {
  const { t, values, keep } = context;
  for (const run of state.runs) run.valid = state.measured.get(run.name) ?? run.valid;
  const inGroup = state.runs.filter((run) => !values.group || groupOf(run) === values.group);
  const shown = columns(context).filter((column) => inGroup.some((run) => column.value(run) !== undefined));
  const { sort = "bits_per_byte" } = values;
  const direction = values.order || (sort === "name" || shown.find((one) => one.key === sort)?.ascending ? "up" : "down");
  const sortBy = (key) => {
    const first = key === "name" || shown.find((one) => one.key === key)?.ascending ? "up" : "down";
    keep({ sort: key, order: key === sort ? (direction === "up" ? "down" : "up") : first });
    redraw();
    holder.querySelector(`[data-sort="${key}"]`)?.focus();
  };
  const heading = (key, title, hint) => el("th", {
    scope: "col", class: key === "name" ? "" : "figure",
    "aria-sort": key === sort ? (direction === "up" ? "ascending" : "descending") : "none",
  }, el("button", { type: "button", class: "quiet sort", title: hint, "data-sort": key, on: { click: () => sortBy(key) } },
    title, el("span", { "aria-hidden": "true" }, key === sort ? (direction === "up" ? " ▲" : " ▼") : "")));
  const rows = sorted(context, state, shown).map((run) => row(context, state, run, shown, redraw, details));
  const unknown = inGroup.filter(isMeasurable);
  const group = el("select", { "aria-label": t("group"), on: { change: () => {
    keep({ group: group.value });
    redraw();
    holder.querySelector(`select[aria-label="${t("group")}"]`)?.focus();
  } } }, ["", ...groups(state.runs)].map((one) => el("option", { value: one, selected: one === (values.group ?? "") }, one || t("everything"))));
  show(holder, el("div", { class: "row spread" }, el("h2", {}, t("leaderboard")),
    el("span", { class: "row" }, el("span", { class: "muted" }, t("counted", { count: rows.length })),
      unknown.length > 1 ? el("button", { type: "button", "data-live": true, on: { click: () => measureRuns(context, state, unknown, redraw) } }, t("measureAll")) : null, group)),
  el("div", { class: "wide" }, el("table", { class: "leaderboard", "data-role": "leaderboard" },
    el("thead", {}, el("tr", {}, heading("name", t("run"), t("h-name")),
      shown.map((column) => heading(column.key, column.title, column.hint)))),
    el("tbody", {}, rows))),
  el("p", { class: "muted" }, t("note")));
}

function row(context, state, run, shown, redraw, details) {
  const { t, values, keep } = context;
  const open = () => {
    keep({ run: run.name }, { push: true });
    redraw();
    showDetails(details, context, run.name).then(() => details.scrollIntoView({ block: "nearest", behavior: "auto" }));
  };
  const measurable = isMeasurable(run);
  const measure = () => measureRuns(context, state, [run], redraw);
  const figures = shown.map((column, place) => {
    const value = column.value(run);
    if (value !== undefined && MEASURED.has(column.key) && run.tested?.length) {
      return el("td", { class: "figure", title: t("tested", { data: run.tested.join(", ") }) }, column.text(value), el("span", { class: "muted kind" }, t("test")));
    }
    if (value !== undefined) return el("td", { class: "figure" }, column.text(value));
    if (place === 0 && measurable) {
      return el("td", { class: "figure" }, el("button", { type: "button", class: "quiet small", "data-live": true, on: { click: measure } }, t("measure")));
    }
    return el("td", { class: "figure muted" }, "–");
  });
  return el("tr", { "data-run": run.name, class: values.run === run.name ? "chosen" : "" },
    el("th", { scope: "row" }, el("button", { type: "button", class: "quiet left run-name", on: { click: open } }, run.name),
      el("span", { class: "muted kind" }, run.model ?? "", badge(t, run))), figures);
}

/** Whether the figures of a run on its validation data are not known yet. */
function isMeasurable(run) {
  return run.status === "finished" && !Object.keys(run.valid ?? {}).length && run.task !== "vectors";
}

/** Measure runs one after another. */
async function measureRuns(context, state, runs, redraw) {
  for (const run of runs) {
    const found = await context.run((signal) => context.api.post("page/api/measure", { model: run.name }, signal));
    if (!found || state.ended) return;
    state.measured.set(run.name, found.valid);
    redraw();
  }
}

/** What is special about a run: that it is being trained, was stopped, or cannot be read. */
function badge(t, run) {
  return run.status === "finished" ? null : el("span", { class: `status ${run.status}`, title: run.error ?? "" }, t(run.status));
}

/* Learning curves */

function drawCurves(holder, context, state, redraw) {
  const { t, values, keep } = context;
  const hidden = new Set((values.hide ?? "").split(",").filter(Boolean));
  const every = state.runs.filter((run) => state.logs.get(run.name)?.records.length);
  const group = drawnGroup(values, every);
  const logged = every.filter((run) => groupOf(run) === group);
  const axis = ["step", "tokens", "seconds"].includes(values.x) ? values.x : "step";
  const figure = ["loss", "lr", "gradient_norm"].includes(values.y) ? values.y : "loss";
  const choose = (name, options, chosen) => el("select", { "aria-label": t(name), on: { change: (event) => {
    keep({ [name]: event.target.value });
    redraw();
    holder.querySelector(`select[aria-label="${t(name)}"]`)?.focus();
  } } }, options.map((one) => el("option", { value: one, selected: one === chosen }, t(`o-${one}`))));
  const series = logged.flatMap((run, place) => (hidden.has(run.name) ? [] : seriesOf(t, run, state.logs.get(run.name).records, place % COLOURS, axis, figure)));
  const toggles = logged.map((run, place) => {
    const box = el("input", { type: "checkbox", checked: !hidden.has(run.name), value: run.name, on: { change: () => {
      if (box.checked) hidden.delete(run.name);
      else hidden.add(run.name);
      keep({ hide: [...hidden].join(",") });
      redraw();
      holder.querySelector(`input[value="${CSS.escape(run.name)}"]`)?.focus();
    } } });
    return el("label", {}, box, swatch({ colour: place % COLOURS, dashed: false }), run.name,
      run.status === "training" ? el("span", { class: "status training" }, t("live")) : null);
  });
  const chart = lineChart(series, {
    label: t("curves"), x: t(`o-${axis}`), y: t(`y-${figure}`), logX: values.scale === "log",
    value: (value) => value.toPrecision(4), at: (value) => `${t(`o-${axis}`)} ${axis === "seconds" ? timeText(value) : shortText(value)}`,
  });
  const log = el("input", { type: "checkbox", checked: values.scale === "log", on: { change: () => {
    keep({ scale: log.checked ? "log" : "" });
    redraw();
    holder.querySelector(".log input")?.focus();
  } } });
  show(holder, el("div", { class: "row spread" }, el("h2", {}, t("curves"), el("span", { class: "muted group" }, group ?? "")), el("div", { class: "row", "data-live": true },
    choose("y", ["loss", "lr", "gradient_norm"], figure), choose("x", ["step", "tokens", "seconds"], axis),
    el("label", { class: "log" }, log, " ", t("logarithmic")))),
  el("div", { class: "choices curves-of" }, toggles), chart ?? el("p", { class: "empty" }, t("noCurves")),
  figure === "loss" && chart ? el("p", { class: "muted" }, t("dashes")) : null);
}

/** Training and validation figures of a run; tokens of a validation are those of the line before it. */
function seriesOf(t, run, records, colour, axis, figure) {
  const unit = figure === "loss" ? Math.LN2 : 1;
  const points = (name) => {
    let tokens = 0;
    return records.flatMap((record) => {
      tokens = record.tokens ?? tokens;
      const x = axis === "tokens" ? tokens : record[axis];
      return typeof record[name] === "number" && typeof x === "number" ? [{ x, y: record[name] / unit }] : [];
    });
  };
  if (figure !== "loss") return [{ name: run.name, colour, dashed: false, points: points(figure) }];
  return [
    { name: run.name, colour, dashed: false, points: points("valid_loss") },
    { name: `${run.name} · ${t("training-loss")}`, colour, dashed: true, points: points("loss") },
  ];
}

/* One run */

async function showDetails(holder, context, name) {
  const { t } = context;
  const found = await context.run((signal) => context.api.get(`page/api/run?${new URLSearchParams({ run: name })}`, signal));
  if (!found) return;
  const copy = el("button", { type: "button", "data-live": true, on: { click: async () => {
    await navigator.clipboard.writeText(found.command);
    context.announce(t("copied"));
    copy.textContent = t("copied");
  } } }, t("copy"));
  const facts = Object.entries(found.signature).map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]);
  show(holder, el("section", { class: "card run-details", "data-role": "details" },
    el("h2", {}, `${found.name} · ${found.model}`),
    el("h3", {}, t("repeat")),
    found.command ? el("div", { class: "command" }, el("pre", { tabindex: "0", "aria-label": t("repeat") }, found.command), copy) : el("p", { class: "muted" }, t("noCommand")),
    el("details", { open: true }, el("summary", {}, t("config")), el("pre", { class: "config", tabindex: "0", "aria-label": t("config") }, found.config)),
    el("details", {}, el("summary", {}, t("signature")), el("dl", { class: "signature" }, facts))));
}
