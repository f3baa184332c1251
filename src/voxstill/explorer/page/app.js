// The explorer: what is chosen, the table, the filters, and the keys.

import { ask, find, length, make, number, percent } from "./api.js";
import { histogram } from "./charts.js";
import { Detail, tag } from "./detail.js";
import { showExperiments } from "./experiments.js";

const PAGE = 100;
const TYPING_MS = 180;
const FIRST_HISTOGRAMS = ["duration_ms", "confidence", "disagreement", "alignment", "chars_per_s", "wer"];
const FACETS = ["split", "judgement", "language", "dataset", "dialect", "finish", "error", "speaker"];
const MOST_VALUES = 12;

const state = { text: "", where: new Map(), order: "", descending: false, starts: [null], rows: [], at: -1, next: null };
let about, columns, detail, shownHistograms;

// ------------------------------------------------------------------------------------------------- what is chosen

const filter = () => {
  const where = [...state.where.values()];
  return state.text || where.length ? JSON.stringify({ text: state.text, where }) : null;
};

function remember() {
  const kept = { text: state.text, where: [...state.where.values()], order: state.order, descending: state.descending };
  history.replaceState(null, "", kept.text || kept.where.length || kept.order ? `#${encodeURIComponent(JSON.stringify(kept))}` : "/");
}

function recall() {
  try {
    const kept = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    state.text = String(kept.text ?? "");
    state.where = new Map((kept.where ?? []).filter((one) => columns.has(one.column)).map((one) => [one.column, one]));
    state.order = columns.has(kept.order) ? kept.order : "";
    state.descending = Boolean(kept.descending);
  } catch { /* the address says nothing, or nothing that is known */ }
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
  remember();
  showChips();
  showOrder();
  await Promise.all([showPage(), showTotals(), showFunnel(), showHistograms(), showFacets()]).catch(complain);
}

// ------------------------------------------------------------------------------------------------- the table

async function showPage(choice = 0) {
  const after = state.starts.at(-1);
  const order = state.order ? `${state.descending ? "-" : ""}${state.order}` : state.descending ? "-" : null;
  find("list").setAttribute("aria-busy", "true");
  const names = new Set(["id", "speaker", "kept", "judgement", ...(about.main ? [] : ["human"]), ...cells().map(({ name }) => name)]);
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
  select(page.rows.length ? Math.min(choice, page.rows.length - 1) : -1, isWide());
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
    if (kind === "judgement") return make("td", {}, ...(value ? [tag(value)] : []));
    if (column.kind === "number") return make("td", { class: "num", "data-label": label }, show ? show(row) : number(value));
    return make("td", { class: kind ?? "", title: value ?? "" }, value ?? "");
  };
  return make("tr", { "aria-selected": "false", "data-place": place, onclick: () => { select(place, true, true); find("rows").focus({ preventScroll: true }); } }, ...cells().map(cell));
}

function showHead() {
  const head = ({ name, width, title }) => {
    const own = state.order === name;
    const sort = own ? (state.descending ? "descending" : "ascending") : "none";
    const isNumber = columns.get(name).kind === "number";
    return make("th", { scope: "col", class: `${width ?? ""} ${isNumber ? "num" : ""}`, "aria-sort": sort },
      make("button", { type: "button", onclick: () => sortBy(name, own ? !state.descending : isNumber) }, title ?? columns.get(name).title));
  };
  find("rows").tHead.rows[0].replaceChildren(...cells().map(head));
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

function select(place, opens, atOnce = false) {
  const body = find("rows").tBodies[0];
  body.rows[state.at]?.setAttribute("aria-selected", "false");
  state.at = place;
  const row = body.rows[place];
  find("utterances").classList.toggle("alone", place < 0 || (!opens && detail.number === null));
  if (!row) return detail.close();
  row.setAttribute("aria-selected", "true");
  row.scrollIntoView({ block: "nearest" });
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
  await showPage(choice).catch(complain);
}

/** Show a judgement in the table, or why it was not written. */
function changed(row, error) {
  if (error) return complain(error);
  find("message").textContent = "";
  const place = state.rows.findIndex((one) => one.row === row.row);
  if (place < 0) return;
  state.rows[place] = { ...state.rows[place], ...row };
  find("rows").tBodies[0].rows[place].replaceWith(line(state.rows[place], place));
  find("rows").tBodies[0].rows[place].setAttribute("aria-selected", String(place === state.at));
  showFacets().catch(complain);
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
    return make("button", { type: "button", "aria-pressed": String(pressed), title: why, onclick: press }, make("span", {}, name),
      make("span", { class: "num" }, number(count)), make("span", { class: `track ${kind}` }, width));
  };
  find("funnel").querySelector(".bars").replaceChildren(
    ...funnel.rules.filter((rule) => rule.dropped || isChosen("reason", rule.name)).map((rule) => bar(rule.name.replaceAll("_", " "), rule.name, rule.dropped, "", isChosen("reason", rule.name), () => toggle("reason", rule.name), rule.why)),
    bar("kept", true, funnel.kept ?? 0, "of-kept", isChosen("kept", true), () => toggle("kept", true), "no rule dropped it"));
}

async function showHistograms() {
  const list = find("histograms").querySelector(".list");
  for (const [place, name] of shownHistograms.entries()) {
    const column = columns.get(name);
    const data = await ask("histogram", { column: name, filter: filter() }, `histogram ${name}`);
    if (shownHistograms[place] !== name) return;
    const remove = () => { shownHistograms = shownHistograms.filter((one) => one !== name); list.replaceChildren(); choose(name, null); };
    const pick = (min, max) => choose(name, min === null && max === null ? null : { min, max });
    const box = histogram(column, data, state.where.get(name), pick, remove);
    if (list.children[place]) list.children[place].replaceWith(box);
    else list.append(box);
  }
  const rest = [...columns.values()].filter(({ name, kind }) => kind === "number" && !shownHistograms.includes(name));
  find("add-histogram").replaceChildren(make("option", { value: "" }, "another score"), ...rest.map(({ name, title }) => make("option", { value: name }, title)));
}

async function showFacets() {
  const list = find("facets").querySelector(".list");
  const names = FACETS.filter((name) => columns.has(name));
  const boxes = [];
  for (const name of names) {
    const values = await ask("facet", { column: name, filter: filter(), limit: 50 }, `facet ${name}`);
    if (values.length < 2 && !state.where.has(name) && (name !== "split" || !values.length)) continue;
    const most = Math.max(1, ...values.map(({ num }) => num));
    const button = ({ value, num }) => {
      const width = make("i");
      width.style.width = `${(100 * num) / most}%`;
      return make("button", { type: "button", "aria-pressed": String(isChosen(name, value)), onclick: () => toggle(name, value) },
        make("span", {}, value === null ? "none" : String(value)), make("span", { class: "num" }, number(num)), make("span", { class: "track of-kept" }, width));
    };
    const more = values.length > MOST_VALUES ? [make("details", {}, make("summary", { class: "soft" }, `${values.length - MOST_VALUES} more`), ...values.slice(MOST_VALUES).map(button))] : [];
    boxes.push(make("div", { class: "values" }, make("header", {}, columns.get(name).title), ...values.slice(0, MOST_VALUES).map(button), ...more));
  }
  list.replaceChildren(...boxes);
}

function showChips() {
  const text = ({ column, in: values, min, max }) => {
    const { title } = columns.get(column);
    if (values) return `${title}: ${values.map((value) => (value === null ? "none" : value)).join(", ")}`;
    return `${title} ${[min === null || min === undefined ? "" : `≥ ${min}`, max === null || max === undefined ? "" : `≤ ${max}`].join(" ").trim()}`;
  };
  const chip = (label, drop) => make("button", { type: "button", "aria-label": `${label}: drop this condition`, onclick: drop }, label);
  const chips = [...state.where.values()].map((one) => chip(text(one), () => choose(one.column, null)));
  if (state.text) chips.unshift(chip(`“${state.text}”`, () => { find("search").value = state.text = ""; refresh(); }));
  find("chips").replaceChildren(...chips);
  const shown = ["id", "uri", "start_ms", "end_ms", "split", "speaker", about.main, "human", "kept", "reason", "judgement"].filter((name) => columns.has(name));
  for (const form of ["jsonl", "csv"]) {
    const query = new URLSearchParams({ format: form, columns: shown.join(","), ...(filter() ? { filter: filter() } : {}) });
    find(`export-${form}`).href = `/api/export?${query}`;
  }
}

function complain(error) {
  find("message").textContent = error.message;
  find("message").className = "";
}

// ------------------------------------------------------------------------------------------------- keys

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
  const { target, key } = event;
  const types = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
  if (key === "Escape") return escape(target, types);
  if (types) {
    if (target.id === "search" && (key === "Enter" || key === "ArrowDown")) { event.preventDefault(); find("rows").focus(); }
    return;
  }
  if (key === " " && /^(BUTTON|A|SUMMARY)$/.test(target.tagName)) return;
  const action = keys[key];
  if (!action) return;
  event.preventDefault();
  action();
}

const keys = {
  j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
  n: () => turn(1), p: () => turn(-1),
  " ": () => detail.player?.toggle(), ArrowLeft: () => detail.player?.skip(-1), ArrowRight: () => detail.player?.skip(1),
  r: () => detail.judge("right"), w: () => detail.judge("wrong"), c: () => detail.correct(), u: () => detail.row?.judgement && detail.judge("withdrawn"),
  "/": () => { show("utterances"); find("search").focus(); find("search").select(); },
  x: () => { state.where.clear(); find("search").value = state.text = ""; refresh(); },
  e: () => about.students.length && show(find("experiments").hidden ? "experiments" : "utterances"),
  "?": () => find("help").showModal(),
};

function escape(target, types) {
  if (types) return target.blur();
  detail.close();
  find("utterances").classList.add("alone");
}

async function show(view) {
  for (const name of ["utterances", "experiments"]) {
    find(name).hidden = name !== view;
    find(`to-${name}`).setAttribute("aria-pressed", String(name === view));
  }
  if (view === "experiments") await showExperiments(find("experiments"), about, only).catch(complain);
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
  detail = new Detail(about, changed);
  shownHistograms = FIRST_HISTOGRAMS.filter((name) => columns.get(name)?.low !== null && columns.has(name));
  find("title").textContent = about.title;
  document.title = `${about.title.split("/").filter(Boolean).at(-1) ?? "corpus"} – voxstill`;
  find("to-experiments").hidden = find("to-utterances").hidden = !about.students.length;
  for (const item of document.querySelectorAll("#help .edit")) item.hidden = !about.editable;
  const sortable = about.columns.filter(({ kind }) => kind !== "text");
  find("order").replaceChildren(make("option", { value: "" }, "order of the index"), ...sortable.map(({ name, title }) => make("option", { value: name }, title)));
  if (!matchMedia("(min-width: 52rem)").matches) find("filters-box").open = false;
  recall();
  find("search").value = state.text;
  let typing;
  find("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { state.text = find("search").value.trim(); refresh(); }, TYPING_MS);
  });
  find("order").addEventListener("change", () => sortBy(find("order").value, columns.get(find("order").value)?.kind === "number"));
  find("direction").addEventListener("click", () => sortBy(state.order, !state.descending));
  find("before").addEventListener("click", () => turn(-1));
  find("behind").addEventListener("click", () => turn(1));
  find("close").addEventListener("click", () => escape(document.body, false));
  find("add-histogram").addEventListener("change", () => { shownHistograms.push(find("add-histogram").value); showHistograms().catch(complain); });
  find("to-utterances").addEventListener("click", () => show("utterances"));
  find("to-experiments").addEventListener("click", () => show("experiments"));
  find("to-help").addEventListener("click", () => find("help").showModal());
  document.addEventListener("keydown", press);
  await refresh();
  find("rows").focus({ preventScroll: true });
  document.body.dataset.ready = "true";
}

start().catch(complain);
