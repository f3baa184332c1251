// Experiments side by side: learning curves, results, errors by group, and where one is right and another wrong.

import { ask, make, number, percent, replace } from "./api.js";
import { curves } from "./charts.js";

const RATES = new Set(["wer", "cer", "accuracy", "eer"]);

export async function showExperiments(box, about, only) {
  const { experiments, groups } = await ask("experiments");
  const judged = experiments.filter((one) => one.column);
  const parts = [results(experiments), ...learning(experiments)];
  if (judged.length > 1) parts.push(disagreements(judged, only));
  const tables = Object.entries(groups).map(([name, rows]) => grouped(name, rows, judged));
  replace(box, [...parts, ...(tables.length ? [make("div", { class: "cards" }, ...tables)] : [])], box);
}

function results(experiments) {
  const rows = experiments.flatMap((one) => one.results.map((result) => [one.name, result]));
  if (!rows.length) return make("p", { class: "soft" }, "None of these experiments was evaluated: run voxstill evaluate.");
  const rate = (result) => {
    const name = ["wer", "accuracy", "eer"].find((key) => result[key] !== undefined && result[key] !== null);
    if (!name) return "–";
    const span = result.interval ? ` (${percent(result.interval[0])} to ${percent(result.interval[1])})` : "";
    return `${name.toUpperCase()} ${percent(result[name])}${span}`;
  };
  return make("section", { class: "card" }, make("h2", {}, "Results"), make("table", {},
    make("thead", {}, make("tr", {}, ...["experiment", "split", "decoding", "result", "words"].map((title) => make("th", { scope: "col", class: title === "words" ? "num" : "" }, title)))),
    make("tbody", {}, ...rows.map(([name, result]) => make("tr", {}, make("td", {}, name), make("td", {}, result.split), make("td", {}, result.decoding), make("td", {}, rate(result)), make("td", { class: "num" }, number(result.words ?? null)))))));
}

function learning(experiments) {
  const charts = new Map();
  experiments.forEach((one, place) => one.curves.forEach((curve) => {
    const title = `${curve.figure.replaceAll("_", " ")}, ${curve.split}`;
    if (!(curve.figure === "loss" || RATES.has(curve.figure))) return;
    charts.set(title, [...(charts.get(title) ?? []), { ...curve, name: one.name, number: place }]);
  }));
  return charts.size ? [make("div", { class: "cards" }, ...[...charts].map(([title, lines]) => curves(title, lines)))] : [];
}

function disagreements(judged, only) {
  const pairs = judged.flatMap((right) => judged.filter((wrong) => wrong !== right).map((wrong) => [right, wrong]));
  return make("section", { class: "card" }, make("h2", {}, "One is right and the other wrong"), make("div", { class: "pairs" },
    ...pairs.map(([right, wrong]) => make("button", { type: "button", "data-key": `${right.column} ${wrong.column}`, onclick: () => only(right.column, wrong.column) }, `${right.name} right, ${wrong.name} wrong`))));
}

function grouped(name, rows, judged) {
  const best = (rates) => Math.min(...rates.filter((rate) => rate !== null));
  return make("section", { class: "card" }, make("h2", {}, `Word error rate by ${name === "dataset" ? "data set" : name}`), make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, name), make("th", { scope: "col", class: "num" }, "words"), ...judged.map((one) => make("th", { scope: "col", class: "num" }, one.name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, make("td", {}, row.value), make("td", { class: "num" }, number(row.words)),
      ...row.wer.map((rate) => make("td", { class: `num ${judged.length > 1 && rate === best(row.wer) ? "best" : ""}` }, percent(rate))))))));
}
