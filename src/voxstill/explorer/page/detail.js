// One utterance: its audio, what everybody wrote, and what is judged.

import { ask, find, make, number, percent, post, seconds } from "./api.js";
import { Player } from "./sound.js";

const KINDS = { right: "Right", wrong: "Wrong" };
const LATER_MS = 80;

export class Detail {
  constructor(about, changed) {
    this.about = about;
    this.changed = changed;
    this.player = null;
    this.number = null;
  }

  /** Show what the table knows of a row, and the rest of it when it has come; `atOnce` waits for no other key. */
  async open(row, atOnce = false) {
    if (this.number === row.row) return;
    this.number = row.row;
    this.row = row;
    this.player?.close();
    const player = this.player = new Player();
    this.texts = null;
    find("detail").hidden = false;
    this.show();
    if (!atOnce) await Promise.race([player.wish, new Promise((resolve) => setTimeout(resolve, LATER_MS))]); // whoever leafs through asks for nothing
    if (this.player !== player) return;
    player.load(row.row);
    this.take(await ask(`utterances/${row.row}`, {}, "utterance"));
  }

  take({ row, texts }) {
    if (row.row !== this.number) return;
    [this.row, this.texts] = [row, texts];
    this.show();
  }

  close() {
    this.player?.close();
    this.player = this.number = null;
    find("detail").hidden = true;
  }

  show() {
    const { row } = this;
    const about = [row.split, row.speaker, row.dataset, row.language, seconds(row.duration_ms)].filter(Boolean).join(" · ");
    find("detail-content").replaceChildren(
      make("h2", {}, row.id),
      make("p", { class: "about" }, about),
      this.player.element,
      ...(this.about.editable ? [this.judging()] : row.judgement ? [make("p", {}, tag(row.judgement))] : []),
      ...(this.texts ?? []).map((written) => this.written(written)),
      ...(this.texts?.some((written) => written.errors) ? [legend()] : []),
      this.fields());
    this.player.draw();
  }

  judging() {
    const { judgement } = this.row;
    const button = (kind) => make("button", { type: "button", "aria-pressed": String(judgement === kind), onclick: () => this.judge(kind) }, KINDS[kind], make("kbd", {}, kind[0]));
    const hasLabel = this.about.main !== null && this.row[this.about.main] !== null;
    const box = make("div", {}, make("div", { class: "judging" },
      ...(hasLabel ? [button("right"), button("wrong")] : []),
      make("button", { type: "button", "aria-pressed": String(judgement === "corrected"), onclick: () => this.correct() }, "Correct", make("kbd", {}, "c")),
      ...(judgement ? [make("button", { type: "button", onclick: () => this.judge("withdrawn") }, "Take back", make("kbd", {}, "u"))] : [])));
    if (this.isCorrecting) {
      const field = make("textarea", { id: "correction", "aria-label": "What was said", spellcheck: "false", maxlength: "10000", dir: "auto" });
      field.value = this.row.correction ?? this.row.human ?? this.row[this.about.main] ?? "";
      field.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); this.judge("corrected", field.value); }
        if (event.key === "Escape") { event.stopPropagation(); this.stopCorrecting(); }
      });
      box.append(make("div", { class: "correcting" }, field, make("div", { class: "row" },
        make("button", { type: "button", onclick: () => this.judge("corrected", field.value) }, "Save"),
        make("button", { type: "button", onclick: () => this.stopCorrecting() }, "Cancel"))));
    }
    return box;
  }

  correct() {
    if (!this.about.editable || this.number === null) return;
    this.isCorrecting = true;
    this.show();
    const field = find("correction");
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  stopCorrecting() {
    this.isCorrecting = false;
    this.show();
    find("rows").focus({ preventScroll: true });
  }

  async judge(judgement, text) {
    if (!this.about.editable || this.number === null) return;
    const body = { row: this.number, judgement, ...(text === undefined ? {} : { text }) };
    try {
      const answer = await post("judgements", body);
      this.isCorrecting = false;
      this.take(answer);
      this.changed(answer.row);
    } catch (error) {
      this.changed(null, error);
    }
    find("rows").focus({ preventScroll: true });
  }

  written({ role, text, pairs, errors, words }) {
    const isStudent = this.about.students.some((student) => student.name === role);
    const kind = role === "human" || role === "corrected" ? "of-human" : isStudent ? "of-student" : "of-teacher";
    const rate = words ? `, ${percent(errors / words)}` : "";
    const about = errors === null ? "the others are compared with this" : errors ? `${number(errors)} errors in ${number(words)} words${rate}` : "the same words";
    return make("article", { class: `written ${kind}` },
      make("header", {}, make("span", { class: "role" }, role), make("span", {}, about)),
      make("p", { dir: "auto" }, ...(errors ? pairs.flatMap(difference) : [text || "∅"])));
  }

  fields() {
    const shown = this.about.columns.filter(({ name, kind }) => kind !== "text" && !["id", "judgement"].includes(name) && this.row[name] !== null && this.row[name] !== undefined);
    const value = (column) => (column.kind === "number" ? number(this.row[column.name]) : String(this.row[column.name]));
    return make("dl", { class: "fields" }, ...shown.flatMap((column) => [make("dt", {}, column.title), make("dd", {}, value(column))]));
  }
}

function difference([reference, hypothesis]) {
  if (reference === hypothesis) return [make("span", {}, hypothesis), " "];
  if (hypothesis === null) return [make("del", { class: "gone" }, reference), " "];
  if (reference === null) return [make("ins", { class: "more" }, hypothesis), " "];
  return [make("del", { class: "was" }, reference), make("ins", { class: "sub" }, hypothesis), " "];
}

const legend = () => make("p", { class: "legend written" },
  make("ins", { class: "sub" }, "another word"), make("ins", { class: "more" }, "a word more"), make("del", { class: "gone" }, "a word less"));

export const tag = (judgement) => make("span", { class: `tag ${judgement}` }, judgement);
