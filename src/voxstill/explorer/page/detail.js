// One utterance: its audio, what everybody wrote, and what is judged.

import { ask, find, focusRows, isComposing, make, number, percent, post, replace, seconds } from "./api.js";
import { Player } from "./sound.js";

const LATER_MS = 80;

export class Detail {
  /** `changed(row, error)` is called with a row that was judged, or with why it was not; `drafted(number)` where a
   * correction of a row was begun or dropped. */
  constructor(about, { changed, drafted }) {
    Object.assign(this, { about, changed, drafted });
    this.player = this.number = null;
    this.drafts = new Map(); // corrections that are not saved, by the number of the row
    this.saving = new Set(); // rows whose correction is on its way
    this.judged = new Set(); // rows that were judged here, whose answers may still be on their way
    this.posts = Promise.resolve();
    this.element = find("detail");
    this.build();
  }

  build() {
    const button = (label, press, key) => make("button", { type: "button", onclick: press }, label, ...(key ? [make("kbd", {}, key)] : []));
    this.buttons = { right: button("Right", () => this.judge("right"), "r"), wrong: button("Wrong", () => this.judge("wrong"), "w"), corrected: button("Correct", () => this.correct(), "c") };
    this.withdrawal = button("Take back", () => this.judge("withdrawn"), "u");
    this.field = make("textarea", { id: "correction", "aria-label": "Corrected text", spellcheck: "false", maxlength: "10000", dir: "auto", oninput: () => this.keep(), onkeydown: (event) => this.press(event) });
    this.editor = make("div", { class: "correcting", hidden: true }, this.field, make("div", { class: "row" }, button("Save", () => this.save()), button("Cancel", () => this.drop())));
    this.heading = make("h2");
    this.facts = make("p", { class: "about" });
    this.sound = make("div");
    this.mark = make("p");
    this.written = make("div");
    this.fields = make("dl", { class: "fields" });
    const judging = this.about.editable ? [make("div", { class: "judging" }, ...Object.values(this.buttons), this.withdrawal), this.editor] : [this.mark];
    find("detail-content").replaceChildren(this.heading, this.facts, this.sound, ...judging, this.written, this.fields);
  }

  /** Show what the table knows of a row, and the rest of it when it has come; `atOnce` waits for no other key. */
  async open(row, atOnce = false) {
    if (this.number === row.row) return;
    [this.number, this.row, this.texts] = [row.row, row, null];
    this.player?.close();
    const player = this.player = new Player();
    replace(this.sound, [player.element]);
    this.element.hidden = false;
    this.edit(this.drafts.has(this.number) && !this.saving.has(this.number));
    this.show();
    if (!atOnce) await Promise.race([player.wish, new Promise((resolve) => setTimeout(resolve, LATER_MS))]); // whoever leafs through asks for nothing
    if (this.player !== player) return;
    player.load(row.row);
    const answer = await ask(`utterances/${row.row}`, {}, "utterance");
    if (this.player === player && !this.texts) this.take(answer); // with texts, a judgement was answered meanwhile
  }

  take({ row, texts }) {
    [this.row, this.texts] = [row, texts];
    this.show();
  }

  close() {
    if (this.element.contains(document.activeElement)) focusRows();
    this.player?.close();
    this.player = this.number = null;
    this.element.hidden = true;
  }

  /** Show all but the player and the field of the correction, which nobody but their user changes. */
  show() {
    const { row } = this, { judgement } = row;
    this.heading.textContent = row.id;
    this.facts.textContent = [row.split, row.speaker, row.dataset, row.language, seconds(row.duration_ms)].filter(Boolean).join(" · ");
    for (const [kind, button] of Object.entries(this.buttons)) {
      button.setAttribute("aria-pressed", String(judgement === kind));
      button.hidden = kind !== "corrected" && !this.hasLabel;
    }
    this.withdrawal.hidden = !judgement;
    this.mark.replaceChildren(...(judgement ? [tag(judgement)] : []));
    const texts = this.texts ?? [];
    this.written.replaceChildren(...texts.map((one) => this.article(one)), ...(texts.some(({ errors }) => errors) ? [legend()] : []));
    this.showFields();
    if (this.element.contains(document.activeElement) && document.activeElement.closest("[hidden]")) focusRows();
    this.player.draw();
  }

  get hasLabel() {
    return this.about.main !== null && this.row[this.about.main] !== null;
  }

  get isTyping() {
    return document.activeElement === this.field;
  }

  get original() {
    return this.row.correction ?? this.row.human ?? this.row[this.about.main] ?? "";
  }

  edit(isOpen) {
    this.editor.hidden = !isOpen;
    if (isOpen) this.field.value = this.drafts.get(this.number) ?? this.original;
  }

  correct() {
    if (!this.about.editable || this.number === null) return;
    if (this.editor.hidden) {
      this.edit(true);
      this.field.setSelectionRange(this.field.value.length, this.field.value.length);
    }
    this.field.focus();
  }

  press(event) {
    if (isComposing(event)) return;
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); this.save(); }
    if (event.key === "Escape") { event.stopPropagation(); this.drop(); }
  }

  /** Keep what is typed until it is saved or dropped, whichever row is chosen meanwhile. */
  keep() {
    if (this.field.value === this.original) this.drafts.delete(this.number);
    else this.drafts.set(this.number, this.field.value);
    this.drafted(this.number);
  }

  drop() {
    this.drafts.delete(this.number);
    this.edit(false);
    focusRows();
    this.drafted(this.number);
  }

  save() {
    this.drafts.set(this.number, this.field.value);
    this.saving.add(this.number);
    this.judge("corrected", this.field.value);
    this.edit(false);
    focusRows();
  }

  /** Send a judgement of this row after those before it. */
  judge(judgement, text) {
    if (!this.about.editable || this.number === null) return;
    if (["right", "wrong"].includes(judgement) && !this.hasLabel) return;
    if (judgement === "withdrawn" && !this.row.judgement && !this.judged.has(this.number)) return;
    const { row } = this;
    this.judged.add(row.row);
    this.posts = this.posts.then(() => this.send(row, judgement, text));
  }

  async send({ row: number, id }, judgement, text) {
    try {
      const answer = await post("judgements", { row: number, judgement, text });
      if (text !== undefined && this.drafts.get(number) === text) this.drafts.delete(number);
      if (number === this.number) this.take(answer);
      this.changed(answer.row);
    } catch (error) {
      if (text !== undefined && number === this.number && this.editor.hidden) this.edit(true);
      this.changed(null, new Error(`${id}: ${error.message}`));
    } finally {
      this.saving.delete(number);
      this.drafted(number);
    }
  }

  article({ role, text, pairs, errors, words }) {
    const isStudent = this.about.students.some((student) => student.name === role);
    const kind = role === "human" || role === "corrected" ? "of-human" : isStudent ? "of-student" : "of-teacher";
    const rate = words ? `, ${percent(errors / words)}` : "";
    const about = pairs === null ? "too long to compare" : errors === null ? "the others are compared with this" : errors ? `${number(errors)} ${errors === 1 ? "error" : "errors"} in ${number(words)} words${rate}` : "the same words";
    return make("article", { class: `written ${kind}` },
      make("header", {}, make("span", { class: "role" }, role), make("span", {}, about)),
      make("p", { dir: "auto" }, ...(errors ? pairs.flatMap(difference) : [text || "∅"])));
  }

  showFields() {
    const shown = this.about.columns.filter(({ name, kind }) => kind !== "text" && !["id", "judgement"].includes(name) && this.row[name] !== null && this.row[name] !== undefined);
    const value = (column) => (column.kind === "number" ? number(this.row[column.name]) : String(this.row[column.name]));
    this.fields.replaceChildren(...shown.flatMap((column) => [make("dt", {}, column.title), make("dd", {}, value(column))]));
  }
}

function difference([reference, hypothesis]) {
  if (reference === hypothesis) return [make("span", {}, hypothesis), " "];
  if (hypothesis === null) return [make("del", { class: "gone" }, reference), " "];
  if (reference === null) return [make("ins", { class: "more" }, hypothesis), " "];
  return [make("del", { class: "was" }, reference), make("ins", { class: "sub" }, hypothesis), " "];
}

const legend = () => make("p", { class: "legend written" },
  make("ins", { class: "sub" }, "substituted word"), make("ins", { class: "more" }, "inserted word"), make("del", { class: "gone" }, "deleted word"));

export const tag = (judgement) => make("span", { class: `tag ${judgement}` }, judgement);
