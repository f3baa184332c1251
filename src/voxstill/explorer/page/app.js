// The explorer: what is chosen, the table, the filters, and the keys.

import { ask, find, focusRows, isComposing, length, make, number, percent, replace } from "./api.js";
import { Histogram } from "./charts.js";
import { fromHash, nothing, toHash } from "./choice.js";
import { Detail, tag } from "./detail.js";
import { showExperiments } from "./experiments.js";
import { Facet, KNOWN } from "./facet.js";

const PAGE = 100;
const TYPING_MS = 180;
const FIRST_HISTOGRAMS = ["duration_ms", "confidence", "disagreement", "alignment", "chars_per_s", "wer"];
const FACETS = ["split", "judgement", "language", "label_language", "dataset", "dialect", "finish", "error", "speaker"];

const state = { ...nothing(), starts: [null], rows: [], at: -1, next: null };
const histograms = new Map(), facets = new Map();
let about, columns, detail;

// ------------------------------------------------------------------------------------------------- what is chosen

const filter = () => {
  const where = [...state.where.values()];
  return state.text || where.length ? JSON.stringify({ text: state.text, where }) : null;
};

function recall() {
  const choice = fromHash(location.hash, columns);
  if (!choice) return;
  Object.assign(state, choice);
  find("search").value = state.text;
}

function choose(column, condition) {
  if (condition) state.where.set(column, { column, ...condition });
  else state.where.delete(column);
  refresh();
}

/** Add a value to those of a column that are shown, or take it away. */
function toggle(column, value) {
  const values = state.where.get(column)?.in ?? [];
  const rest = values.includes(value) ? values.filter((one) => one !== value) : [...values, value];
  choose(column, rest.length ? { in: rest } : null);
}

const isChosen = (column, value) => state.where.get(column)?.in?.includes(value) ?? false;

async function refresh() {
  state.starts = [null];
  history.replaceState(null, "", toHash(state) || "/");
  showChips();
  showExport();
  showOrder();
  await Promise.all([showPage(), showTotals(), showFunnel(), showHistograms(), showFacets()]).catch(complain);
  document.body.dataset.ready = "true";
}

// ------------------------------------------------------------------------------------------------- the table

async function showPage(choice = 0) {
  const after = state.starts.at(-1);
  const order = state.order ? `${state.descending ? "-" : ""}${state.order}` : state.descending ? "-" : null;
  find("list").setAttribute("aria-busy", "true");
  const corrected = about.editable ? ["human", "correction"] : []; // a correction begins with them, and waits for no details
  const names = new Set(["id", "speaker", "kept", "judgement", ...corrected, ...cells().map(({ name }) => name)]);
  const shown = [...names].filter((name) => columns.has(name)).join(",");
  const page = await ask("rows", { filter: filter(), order, after: after && JSON.stringify(after), limit: PAGE, columns: shown }, "rows");
  find("list").removeAttribute("aria-busy");
  state.rows = page.rows;
  state.next = page.next;
  find("message").textContent = page.rows.length ? "" : "No utterance fits these conditions.";
  find("message").className = "plain";
  find("rows").tBodies[0].replaceChildren(...page.rows.map(line));
  find("page").textContent = page.rows.length ? `page ${number(state.starts.length)}` : "";
  find("before").disabled = state.starts.length === 1;
  find("behind").disabled = !page.next;
  if (document.activeElement.disabled) focusRows();
  if (detail.isTyping) mark(state.rows.findIndex(({ row }) => row === detail.number));
  else select(Math.min(choice, page.rows.length - 1), isWide());
}

const isWide = () => matchMedia("(min-width: 78rem)").matches;

function cells() {
  const by = state.order && !["id", "duration_ms", "speaker", "reason", "confidence", "judgement", about.main].includes(state.order) ? columns.get(state.order) : null;
  return [
    { name: about.main ?? "human", kind: "text", title: "text" },
    { name: "duration_ms", width: "w-short", title: "seconds", show: (row) => (row.duration_ms / 1000).toFixed(1) },
    ...(columns.has("confidence") ? [{ name: "confidence", width: "w-num", title: "confidence" }] : []),
    ...(by ? [{ name: by.name, width: by.kind === "number" ? "w-num" : "w-speaker" }] : []),
    ...(columns.has("reason") ? [{ name: "reason", kind: "reason", width: "w-reason" }] : []),
    ...(about.editable ? [{ name: "judgement", kind: "judgement", width: "w-judgement" }] : []),
  ].filter(({ name }) => columns.has(name));
}

function line(row, place) {
  const cell = ({ name, kind, title, show }) => {
    const column = columns.get(name), value = row[name];
    const label = title ?? column.title;
    if (kind === "text") return make("td", { class: "cell-text" }, make("div", { class: "text", dir: "auto" }, value || row.human || "∅"), make("small", {}, [row.id, row.speaker].filter(Boolean).join(" · ")));
    if (kind === "reason") {
      if (row.kept === null || row.kept === undefined) return make("td");
      return make("td", {}, make("span", { class: `tag ${row.kept ? "kept" : "dropped"}` }, row.kept ? "kept" : value.replaceAll("_", " ")));
    }
    if (kind === "judgement") return make("td", {}, ...(detail.drafts.has(row.row) ? [tag("unsaved")] : value ? [tag(value)] : []));
    if (column.kind === "number") return make("td", { class: "num", "data-label": label }, show ? show(row) : number(value));
    return make("td", { class: kind ?? "", title: value ?? "" }, value ?? "");
  };
  return make("tr", { "aria-selected": "false", "data-place": place, onclick: () => { select(place, true, true); focusRows(); } }, ...cells().map(cell));
}

function showHead() {
  const head = ({ name, width, title }) => {
    const own = state.order === name;
    const sort = own ? (state.descending ? "descending" : "ascending") : "none";
    const isNumber = columns.get(name).kind === "number";
    return make("th", { scope: "col", class: `${width ?? ""} ${isNumber ? "num" : ""}`, "aria-sort": sort },
      make("button", { type: "button", "data-key": name, onclick: () => sortBy(name, own ? !state.descending : isNumber) }, title ?? columns.get(name).title));
  };
  replace(find("rows").tHead.rows[0], cells().map(head));
}

function sortBy(name, descending) {
  [state.order, state.descending] = [name, descending];
  refresh();
}

function showOrder() {
  find("order").value = state.order;
  find("direction").textContent = state.descending ? "↓ largest first" : "↑ smallest first";
  find("direction").setAttribute("aria-pressed", String(state.descending));
  showHead();
}

function mark(place) {
  const body = find("rows").tBodies[0];
  body.rows[state.at]?.setAttribute("aria-selected", "false");
  state.at = place;
  body.rows[place]?.setAttribute("aria-selected", "true");
  body.rows[place]?.scrollIntoView({ block: "nearest" });
}

function select(place, opens, atOnce = false) {
  mark(place);
  find("utterances").classList.toggle("alone", place < 0 || (!opens && detail.number === null));
  if (place < 0) return detail.close();
  if (opens || detail.number !== null) detail.open(state.rows[place], atOnce).catch(complain);
}

async function move(by) {
  const place = state.at + by;
  if (place >= 0 && place < state.rows.length) return select(place, true);
  if (by > 0 && state.next) return turn(1, 0);
  if (by < 0 && state.starts.length > 1) return turn(-1, PAGE - 1);
}

async function turn(by, choice = 0) {
  if (by > 0 && !state.next) return;
  if (by < 0 && state.starts.length === 1) return;
  if (by > 0) state.starts.push(state.next);
  else state.starts.pop();
  state.next = null; // until the page is there, whoever presses the key again stays on it
  await showPage(choice).catch(complain);
}

/** Show a judgement in the table, or why it was not written. */
function changed(row, error) {
  if (error) return complain(error);
  find("message").textContent = "";
  const place = state.rows.findIndex((one) => one.row === row.row);
  if (place >= 0) state.rows[place] = { ...state.rows[place], ...row };
  redraw(row.row);
  showFacets().catch(complain);
}

function redraw(number) {
  const body = find("rows").tBodies[0], place = state.rows.findIndex(({ row }) => row === number);
  if (place < 0) return;
  body.rows[place].replaceWith(line(state.rows[place], place));
  body.rows[place].setAttribute("aria-selected", String(place === state.at));
}

// ------------------------------------------------------------------------------------------------- filters

async function showTotals() {
  const totals = await ask("totals", { filter: filter() }, "totals");
  const facts = [[number(totals.utterances), totals.utterances === about.utterances ? "utterances" : `of ${number(about.utterances)} utterances`], [length(totals.duration_ms), "of audio"]];
  if (totals.judged) facts.push([percent(totals.kept / totals.judged), "kept"]);
  find("totals").replaceChildren(...facts.map(([value, name]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

async function showFunnel() {
  const funnel = await ask("funnel", { filter: filter() }, "funnel");
  find("funnel").hidden = !funnel.rules.length;
  if (!funnel.rules.length) return;
  const bar = (name, value, count, kind, pressed, press, why) => {
    const width = make("i");
    width.style.width = `${funnel.judged ? (100 * count) / funnel.judged : 0}%`;
    return make("button", { type: "button", "data-key": String(value), "aria-pressed": String(pressed), title: why, onclick: press }, make("span", {}, name),
      make("span", { class: "num" }, number(count)), make("span", { class: `track ${kind}` }, width));
  };
  replace(find("funnel").querySelector(".bars"), [
    ...funnel.rules.filter((rule) => rule.dropped || isChosen("reason", rule.name)).map((rule) => bar(rule.name.replaceAll("_", " "), rule.name, rule.dropped, "", isChosen("reason", rule.name), () => toggle("reason", rule.name), rule.why)),
    bar("kept", true, funnel.kept ?? 0, "of-kept", isChosen("kept", true), () => toggle("kept", true), "no rule dropped it")]);
}

async function showHistograms() {
  for (const [name, shown] of histograms) {
    const data = await ask("histogram", { column: name, filter: filter() }, `histogram ${name}`);
    shown.update(data, state.where.get(name));
  }
}

function addHistogram(name) {
  const choice = (min, max) => choose(name, min === null && max === null ? null : { min, max });
  const shown = new Histogram(columns.get(name), { choose: choice, hide: () => hideHistogram(name), complain });
  histograms.set(name, shown);
  find("histograms").querySelector(".list").append(shown.element);
  offerHistograms();
}

function hideHistogram(name) {
  const { element } = histograms.get(name), next = element.nextElementSibling ?? element.previousElementSibling;
  (next?.querySelector("header button") ?? find("add-histogram")).focus();
  element.remove();
  histograms.delete(name);
  offerHistograms();
  choose(name, null);
}

function offerHistograms() {
  const rest = [...columns.values()].filter(({ name, kind }) => kind === "number" && !histograms.has(name));
  find("add-histogram").replaceChildren(make("option", { value: "" }, "another score"), ...rest.map(({ name, title }) => make("option", { value: name }, title)));
}

async function showFacets() {
  for (const [name, shown] of facets) {
    const values = await ask("facet", { column: name, filter: filter(), limit: KNOWN }, `facet ${name}`);
    shown.update(values, state.where.get(name)?.in ?? [], name === "split");
  }
}

function showChips() {
  const text = ({ column, in: values, min, max }) => {
    const { title } = columns.get(column);
    if (values) return `${title}: ${values.map((value) => (value === null ? "none" : value)).join(", ")}`;
    return `${title} ${[min === null || min === undefined ? "" : `≥ ${min}`, max === null || max === undefined ? "" : `≤ ${max}`].join(" ").trim()}`;
  };
  const chip = (key, label, drop) => make("button", { type: "button", "data-key": key, "aria-label": `${label}: remove this condition`, onclick: drop }, label);
  const chips = [...state.where.values()].map((one) => chip(one.column, text(one), () => choose(one.column, null)));
  if (state.text) chips.unshift(chip("", `“${state.text}”`, () => { find("search").value = state.text = ""; refresh(); }));
  replace(find("chips"), chips);
}

function showExport() {
  const texts = [...about.teachers.map(({ name }) => name), ...about.students.map(({ column }) => column)];
  const names = ["id", "uri", "channel", "start_ms", "end_ms", "split", "speaker", "human", ...texts, "kept", "reason", "judgement", "correction"];
  for (const form of ["jsonl", "csv"]) {
    const query = new URLSearchParams({ format: form, columns: names.filter((name) => columns.has(name)).join(","), ...(filter() ? { filter: filter() } : {}) });
    find(`export-${form}`).href = `/api/export?${query}`;
  }
}

function complain(error) {
  find("message").textContent = error.message;
  find("message").className = "";
}

// ------------------------------------------------------------------------------------------------- keys

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isComposing(event) || find("help").open) return;
  const { target, key } = event;
  const types = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
  if (types && key === "Escape") return focusRows();
  if (types) {
    if (target.id === "search" && (key === "Enter" || key === "ArrowDown")) { event.preventDefault(); focusRows(); }
    return;
  }
  if (key === " " && /^(BUTTON|A|SUMMARY)$/.test(target.tagName)) return;
  const action = keys[key] ?? (find("utterances").hidden ? undefined : keysOfUtterances[key]);
  if (!action) return;
  event.preventDefault();
  action();
}

const keys = {
  "/": () => { show("utterances"); find("search").focus(); find("search").select(); },
  e: () => about.students.length && show(find("experiments").hidden ? "experiments" : "utterances"),
  "?": () => find("help").showModal(),
};

const keysOfUtterances = {
  j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
  n: () => turn(1), p: () => turn(-1),
  " ": () => detail.player?.toggle(), ArrowLeft: () => detail.player?.skip(-1), ArrowRight: () => detail.player?.skip(1),
  r: () => detail.judge("right"), w: () => detail.judge("wrong"), c: () => correct(), u: () => detail.judge("withdrawn"),
  x: () => { state.where.clear(); find("search").value = state.text = ""; refresh(); },
  Escape: () => close(),
};

/** Correct the chosen row, which is opened where it is not. */
function correct() {
  if (about.editable && detail.number === null && state.rows[state.at]) select(state.at, true, true);
  detail.correct();
}

function close() {
  detail.close();
  find("utterances").classList.add("alone");
}

async function show(view) {
  const isExperiments = view === "experiments", active = document.activeElement;
  const losesFocus = active === document.body || find(isExperiments ? "utterances" : "experiments").contains(active);
  for (const name of ["utterances", "experiments"]) {
    find(name).hidden = name !== view;
    find(`to-${name}`).setAttribute("aria-pressed", String(name === view));
  }
  if (losesFocus) (isExperiments ? find("experiments") : find("rows")).focus({ preventScroll: true });
  if (!isExperiments) return;
  detail.player?.pause();
  await showExperiments(find("experiments"), about, only).catch(complain);
}

/** Show the utterances that one student gets right and another wrong. */
function only(right, wrong) {
  state.where.clear();
  state.where.set(`${right}_errors`, { column: `${right}_errors`, max: 0 });
  state.where.set(`${wrong}_errors`, { column: `${wrong}_errors`, min: 1 });
  show("utterances");
  refresh();
}

async function start() {
  about = await ask("about");
  columns = new Map(about.columns.map((column) => [column.name, column]));
  detail = new Detail(about, { changed, drafted: redraw });
  FIRST_HISTOGRAMS.filter((name) => columns.has(name) && columns.get(name).low !== null).forEach(addHistogram);
  for (const column of FACETS.filter((name) => columns.has(name)).map((name) => columns.get(name))) facets.set(column.name, new Facet(column, (value) => toggle(column.name, value)));
  find("facets").querySelector(".list").append(...[...facets.values()].map(({ element }) => element));
  find("title").textContent = about.title;
  document.title = `${about.title.split("/").filter(Boolean).at(-1) ?? "corpus"} – voxstill`;
  find("to-experiments").hidden = find("to-utterances").hidden = !about.students.length;
  for (const item of document.querySelectorAll("#help .edit")) item.hidden = !about.editable;
  const sortable = about.columns.filter(({ kind }) => kind !== "text");
  find("order").replaceChildren(make("option", { value: "" }, "order of the index"), ...sortable.map(({ name, title }) => make("option", { value: name }, title)));
  if (!matchMedia("(min-width: 52rem)").matches) find("filters-box").open = false;
  recall();
  let typing;
  find("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { state.text = find("search").value.trim(); refresh(); }, TYPING_MS);
  });
  find("order").addEventListener("change", () => sortBy(find("order").value, columns.get(find("order").value)?.kind === "number"));
  find("direction").addEventListener("click", () => sortBy(state.order, !state.descending));
  find("before").addEventListener("click", () => turn(-1));
  find("behind").addEventListener("click", () => turn(1));
  find("close").addEventListener("click", close);
  find("add-histogram").addEventListener("change", () => { addHistogram(find("add-histogram").value); showHistograms().catch(complain); });
  find("to-utterances").addEventListener("click", () => show("utterances"));
  find("to-experiments").addEventListener("click", () => show("experiments"));
  find("to-help").addEventListener("click", () => find("help").showModal());
  find("to-rows").addEventListener("click", (event) => { event.preventDefault(); focusRows(); });
  document.addEventListener("keydown", press);
  addEventListener("hashchange", () => { recall(); show("utterances"); refresh(); });
  addEventListener("beforeunload", (event) => { if (detail.drafts.size) event.preventDefault(); });
  focusRows();
  refresh();
}

start().catch(complain);
