/** Choosing examples: the sample, drawings, pictures by class, or a table. What is chosen is read here and stays here. */

import { checkData, tableColumns, type DataSource, type DataSummary, type Drawing, type FirstLine } from "../session/session.ts";
import { wordsOf } from "../wire/refusal.ts";
import type { Task } from "./api.ts";
import { fill, h, say, type Child } from "./dom.ts";
import { sentence } from "./front.ts";
import { Pad, thumbnail } from "./pad.ts";
import { isGrey } from "./sample_pictures.ts";
import { counted, listed } from "./words.ts";

type Kind = DataSource["kind"];

interface Option {
  kind: Kind;
  name: string;
  hint: string;
}

export class DataChoice {
  readonly element: HTMLElement;
  /** What a session gets; null until there is something. */
  data: DataSource | null = null;
  private readonly task: Task;
  private readonly sample: boolean;
  private readonly changed: () => void;
  private readonly panel = h("div", { class: "panel" });
  private readonly found = h("div", { role: "status", class: "found" });
  private readonly drawings: Drawing[] = [];
  private readonly pictures = new Map<number, File[]>();
  private checks = 0;

  constructor(task: Task, sample: boolean, changed: () => void) {
    const offered = options(task).filter(({ kind }) => sample || kind !== "sample");
    this.task = task;
    this.sample = sample;
    this.changed = changed;
    this.element = h(
      "fieldset",
      {},
      h("legend", { class: "unseen" }, "Which examples do you take part with?"),
      h("div", { class: "choices" }, ...offered.map((option, k) => this.radio(option, k === 0))),
      this.panel,
      this.found,
    );
    this.show(offered[0]?.kind ?? "csv");
  }

  private radio(option: Option, checked: boolean): HTMLElement {
    const input = h("input", {
      type: "radio",
      name: "data",
      value: option.kind,
      checked,
      onchange: () => this.show(option.kind),
    });
    return h(
      "label",
      { class: "choice" },
      input,
      h("span", {}, h("b", {}, option.name), h("span", { class: "hint" }, option.hint)),
    );
  }

  private show(kind: Kind): void {
    const panels: Record<Kind, () => Child[]> = {
      sample: () => this.samplePanel(),
      drawings: () => this.drawingPanel(),
      images: () => this.imagePanel(),
      csv: () => this.tablePanel(),
    };
    fill(this.panel, ...panels[kind]());
    const kept: Record<Kind, DataSource | null> = {
      sample: { kind: "sample" },
      drawings: this.drawnData(),
      images: this.pictureData(),
      csv: null,
    };
    this.take(kept[kind]);
  }

  /** Reads the data as the session will, and says what was found. */
  private take(data: DataSource | null): void {
    this.data = data;
    this.checks += 1;
    const check = this.checks;
    this.changed();
    if (data === null || data.kind === "sample") return fill(this.found);
    if (isUntouched(data)) return fill(this.found, h("p", { class: "quiet small" }, "So far, what you would add is nothing, or noise alone."));
    fill(this.found, h("p", { class: "quiet" }, "Looking at your examples…"));
    checkData(data, this.task).then(
      (summary) => check === this.checks && fill(this.found, ...this.summaryWords(summary)),
      (problem: unknown) => check === this.checks && this.refuse(problem),
    );
  }

  private refuse(problem: unknown): void {
    this.data = null;
    this.changed();
    const text = wordsOf(problem);
    fill(
      this.found,
      h(
        "div",
        { class: "note bad", role: "alert" },
        h("p", {}, h("b", {}, "These examples cannot be used. "), sentence(text)),
      ),
    );
  }

  private summaryWords(summary: DataSummary): Child[] {
    const parts = summary.perClass
      .map((number, k) => ({ number, name: this.task.classes[k] ?? String(k) }))
      .filter(({ number }) => number > 0)
      .map(({ number, name }) => `${number} of “${name}”`);
    return [
      summary.records === 0
        ? h("div", { class: "note bad", role: "alert" }, h("p", {}, h("b", {}, "No example can be used. "), NOTHING_TO_ADD))
        : h(
            "div",
            { class: "note good" },
            h(
              "p",
              {},
              h("b", {}, `${counted(summary.records, "example")} can be used: `),
              `${listed(parts)}. Only you see these figures.`,
            ),
          ),
      summary.matched !== undefined && this.task.input.kind === "features" && h("p", { class: "small matched" }, matchedWords(summary.matched)),
      summary.records > 0 && few(summary.records, enough(this.task)) && h("p", { class: "note", "data-enough": enough(this.task) }, fewWords(summary.records, this.task, this.sample)),
      summary.notes.length > 0 &&
        h("div", { class: "note warn" }, h("ul", {}, ...summary.notes.map((note) => h("li", {}, note)))),
    ];
  }

  private samplePanel(): Child[] {
    return [
      h(
        "p",
        {},
        "Public examples from the server, nobody's secret: the way to see how it works.",
      ),
    ];
  }

  private drawingPanel(): Child[] {
    const classes = this.task.classes;
    let label = 0;
    const list = h("ul", { class: "thumbs", "aria-label": "Your drawings" });
    const told = h("p", { role: "status", class: "small quiet" });
    const pad = new Pad("Draw an example here", () => undefined);
    const buttons = classes.map((name, k) =>
      h("button", { type: "button", "aria-pressed": String(k === label), onclick: () => choose(k) }, name),
    );
    const choose = (k: number): void => {
      label = k;
      buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(j === k)));
    };
    const refresh = (): void => {
      list.replaceChildren(...this.drawings.map((drawing, k) => this.drawn(drawing, k, refresh)));
      this.take(this.drawnData());
    };
    const keep = (): void => {
      if (pad.isEmpty) return say(told, "Draw something first.");
      const [height, width] = pictureSize(this.task);
      this.drawings.push({ label, ...pad.picture(width, height) });
      say(told, `Added a “${classes[label]}”. You have ${counted(this.drawings.length, "drawing")}.`);
      pad.clear();
      choose((label + 1) % classes.length);
      refresh();
    };
    list.replaceChildren(...this.drawings.map((drawing, k) => this.drawn(drawing, k, refresh)));
    return [
      h("p", { class: "small" }, `Draw it large and add it; then the next. A few show how it works. About ${enough(this.task)}, some of each kind, help as much as the examples of others.`),
      h(
        "div",
        { class: "pad-and-side" },
        h(
          "div",
          { class: "beside", role: "group", "aria-label": "What I am drawing" },
          h("p", { class: "small quiet" }, "I am drawing a"),
          h("div", { class: classes.every((name) => name.length <= 2) ? "digits short" : "digits" }, ...buttons),
        ),
        h(
          "div",
          { class: "pad-box" },
          pad.canvas,
          h(
            "div",
            { class: "row" },
            h("button", { type: "button", class: "main", onclick: keep }, "Add this drawing"),
            h("button", { type: "button", onclick: () => pad.clear() }, "Clear"),
          ),
        ),
        h("div", { class: "beside" }, told, list),
      ),
    ];
  }

  private drawn(drawing: Drawing, k: number, refresh: () => void): HTMLElement {
    const name = this.task.classes[drawing.label] ?? String(drawing.label);
    const remove = (): void => {
      this.drawings.splice(k, 1);
      refresh();
    };
    return h(
      "li",
      {},
      thumbnail(drawing, `drawing of ${name}`),
      h("span", { class: "mark" }, name),
      h(
        "button",
        { type: "button", class: "plain small", "aria-label": `Remove drawing ${k + 1}, a ${name}`, onclick: remove },
        "✕",
      ),
    );
  }

  private drawnData(): DataSource {
    return { kind: "drawings", drawings: [...this.drawings] };
  }

  private imagePanel(): Child[] {
    const select = h(
      "select",
      { id: "picture-class" },
      ...this.task.classes.map((name, k) => h("option", { value: k }, name)),
    );
    const told = h("p", { role: "status", class: "small" });
    const have = h("p", { class: "quiet small" });
    const refresh = (): void => {
      none.hidden = this.pictures.size === 0;
      const parts = [...this.pictures].filter(([, files]) => files.length > 0).sort(([a], [b]) => a - b);
      say(
        have,
        parts.length === 0
          ? "Nothing chosen yet."
          : `Chosen: ${listed(parts.map(([label, files]) => `${files.length} of “${this.task.classes[label]}”`))}.`,
      );
      this.take(this.pictureData());
    };
    const addFiles = (label: number, files: Iterable<File>): void => {
      this.pictures.set(label, [...(this.pictures.get(label) ?? []), ...files]);
    };
    const files = h("input", {
      type: "file",
      id: "picture-files",
      accept: "image/*",
      multiple: true,
      onchange: () => {
        addFiles(Number(select.value), files.files ?? []);
        files.value = "";
        refresh();
      },
    });
    const folder = h("input", {
      type: "file",
      id: "picture-folder",
      webkitdirectory: true,
      multiple: true,
      onchange: () => {
        const strangers = new Set<string>();
        for (const file of folder.files ?? []) {
          const parent = file.webkitRelativePath.split("/").at(-2) ?? "";
          const label = this.task.classes.indexOf(parent);
          if (label < 0) strangers.add(parent);
          else addFiles(label, [file]);
        }
        say(
          told,
          strangers.size > 0
            ? `Left out, because no class has that name: ${listed([...strangers].slice(0, 5).map((name) => `“${name}”`))}. Name each folder after what its pictures show.`
            : "",
        );
        folder.value = "";
        refresh();
      },
    });
    const forget = (): void => {
      this.pictures.clear();
      refresh();
    };
    const none = h("button", { type: "button", hidden: true, onclick: forget }, "Forget these pictures");
    say(have, "Nothing chosen yet.");
    if (this.pictures.size > 0) refresh();
    return [
      h(
        "p",
        {},
        "Choose pictures for one kind at a time, or a folder that holds one folder of pictures for each kind. They are made grey and small in this page; they are not uploaded.",
      ),
      h(
        "div",
        { class: "row" },
        h("div", { class: "field" }, h("label", { for: "picture-class" }, "They show"), select),
        h("div", { class: "field" }, h("label", { for: "picture-files" }, "Pictures"), files),
      ),
      h(
        "div",
        { class: "field" },
        h("label", { for: "picture-folder" }, "Or a whole folder ", h("span", { class: "hint" }, "(on a computer)")),
        folder,
      ),
      have,
      told,
      none,
    ];
  }

  private pictureData(): DataSource {
    return { kind: "images", classes: [...this.pictures].map(([label, files]) => ({ label, files })) };
  }

  private tablePanel(): Child[] {
    const column = h("select", { id: "table-label", onchange: () => take() });
    const which = h("div", { class: "field", hidden: true }, h("label", { for: "table-label" }, "Which column is the class?"), column);
    const first = h(
      "select",
      { id: "table-first", onchange: () => look() },
      ...FIRST_LINES.map(([value, words]) => h("option", { value }, words)),
    );
    const file = h("input", {
      type: "file",
      id: "table-file",
      accept: ".csv,text/csv,text/plain",
      onchange: () => look(),
    });
    const reading = (): { first?: FirstLine } => (first.value === "" ? {} : { first: first.value as FirstLine });
    const look = (): void => {
      const chosen = file.files?.[0];
      if (chosen === undefined) return;
      which.hidden = true;
      this.take(null);
      if (first.value === "" && !this.task.input.columns) {
        return fill(this.found, h("p", { class: "note" }, "Say above what the first line of your table holds: only you know."));
      }
      const check = this.checks;
      tableColumns(chosen, this.task, reading().first).then(
        ({ names, candidates, label }) => {
          if (check !== this.checks) return;
          fill(
            column,
            label === null && h("option", { value: "" }, "Choose…"),
            ...candidates.map((k) => h("option", { value: k, selected: k === label }, names[k] || `column ${k + 1}`)),
          );
          which.hidden = false;
          take();
        },
        (problem: unknown) => check === this.checks && this.refuse(problem),
      );
    };
    const take = (): void => {
      const chosen = file.files?.[0];
      if (chosen === undefined) return;
      if (column.value !== "") return this.take({ kind: "csv", file: chosen, label: Number(column.value), ...reading() });
      this.take(null);
      fill(this.found, h("p", { class: "note" }, "Your table does not say which of its columns is the class: choose it above."));
    };
    const values = this.task.input.shape.reduce((product, side) => product * side, 1);
    return [
      h(
        "p",
        {},
        `A table saved as CSV: one example a line, with ${tableWords(this.task, values)} and its class (${listed(this.task.classes.map((name) => `“${name}”`), "or")}).`,
      ),
      h("div", { class: "field" }, h("label", { for: "table-file" }, "Table"), file),
      !this.task.input.columns && h("div", { class: "field" }, h("label", { for: "table-first" }, "Its first line holds"), first),
      which,
    ];
  }
}

/** True if nothing was drawn or chosen yet. */
const isUntouched = (data: DataSource): boolean =>
  (data.kind === "drawings" && data.drawings.length === 0) || (data.kind === "images" && data.classes.every(({ files }) => files.length === 0));

/** For whoever has nothing to learn from. To keep them out would tell the server of a single record. */
const NOTHING_TO_ADD = "You can take part all the same, but what you add is nothing, or noise alone.";

/** What the first line of a table holds. Its owner says so: a guess could take a record for names. */
const FIRST_LINES: readonly (readonly [FirstLine | "", string])[] = [
  ["", "Choose…"],
  ["names", "names of columns"],
  [",", "an example, with commas"],
  [";", "an example, with semicolons"],
  ["\t", "an example, with tabs"],
];

function options(task: Task): Option[] {
  const all: Option[] = [
    { kind: "sample", name: "The sample", hint: "Public, to try it out." },
    { kind: "drawings", name: "Draw here", hint: "Finger, mouse or keys." },
    { kind: "images", name: "My pictures", hint: "Photos or files." },
    { kind: "csv", name: "My table", hint: "A CSV file." },
  ];
  return all.filter(({ kind }) =>
    kind === "drawings" ? isGrey(task) : kind === "images" ? task.input.kind === "image" : true,
  );
}

/** What a line of a table has to hold. */
function tableWords({ input }: Task, values: number): string {
  const names = (input.columns ?? []).map(({ name }) => name);
  if (names.length === 0) return counted(values, "number");
  return names.length <= 12 ? `the columns ${listed(names)}` : `the columns ${names.slice(0, 10).join(", ")} and ${names.length - 10} more`;
}

/** Which columns of a table were taken for what. */
export function matchedWords({ columns, label }: { columns: readonly string[]; label: string }): string {
  const shown = columns.length <= 12 ? listed([...columns]) : `${columns.slice(0, 10).join(", ")} and ${columns.length - 10} more`;
  return `Learns from ${counted(columns.length, "column")}: ${shown}. The class is in “${label}”.`;
}

/** How many examples of one participant the federation reckons with; a plain guess where it does not say. */
export function enough({ training }: Pick<Task, "training">): number {
  const { expected_batch: batch, rate } = training as { expected_batch?: number; rate?: number };
  const records = batch !== undefined && rate !== undefined && rate > 0 ? batch / rate : 100;
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(records)) - 1);
  return Math.max(1, Math.round(records / unit) * unit);
}

/** Whether so few examples hardly matter among the others. */
export function few(records: number, wanted: number): boolean {
  return records < wanted / 5;
}

function fewWords(records: number, task: Task, sample: boolean): string {
  const hint = sample ? " To see the model learn, take the sample." : "";
  return `${capital(counted(records, "example"))} ${records === 1 ? "is" : "are"} few: what your page adds will be mostly noise. About ${enough(task)} help as much as the examples of others.${hint}`;
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Height and width of the model's pictures. */
export function pictureSize(task: Task): [number, number] {
  const [height, width] = task.input.shape.slice(-2);
  return [height ?? 1, width ?? 1];
}
