/** Seeing the noise: what this page would say, what it says, and what all together changed. The first stays in the page. */

import type { Task } from "./api.ts";
import { fill, h, say } from "./dom.ts";
import { counted } from "./words.ts";

type Colour = readonly [number, number, number];

/** Blue for less, orange for more: told apart by all common kinds of colour vision, and by brightness from no change. */
const LESS: Colour = [33, 102, 172];
const NONE: Colour = [247, 247, 247];
const MORE: Colour = [179, 88, 6];

/** Small values are drawn stronger by this power, in all pictures alike: next to noise they would be lost. */
const CURVE = 0.7;

/** The colour of a value between -1 and 1; what lies beyond is drawn as the nearest. */
export function shade(value: number): Colour {
  const at = Math.max(-1, Math.min(1, Number.isFinite(value) ? value : 0));
  const end = at < 0 ? LESS : MORE;
  const mix = (k: 0 | 1 | 2): number => Math.round(NONE[k] + Math.abs(at) ** CURVE * (end[k] - NONE[k]));
  return [mix(0), mix(1), mix(2)];
}

/** How a vector is drawn: one picture for each class where a linear model looks at pixels, otherwise one map of all values. */
export interface Layout {
  kind: "classes" | "map";
  width: number;
  height: number;
  pictures: number;
}

/** Values of a map at most: more dots than a screen has would show nothing. */
const MOST_DOTS = 40_000;

export function layoutOf({ input, classes, upload }: Pick<Task, "input" | "classes" | "upload">, values: number): Layout {
  const [channels = 0, height = 0, width = 0] = input.shape;
  const pixels = height * width;
  const linear = upload.what !== "sums" && input.kind === "image" && channels === 1 && values === classes.length * (pixels + 1);
  if (linear && classes.length <= 12) return { kind: "classes", width, height, pictures: classes.length };
  const shown = Math.min(values, MOST_DOTS);
  const across = Math.ceil(Math.sqrt(2 * shown));
  return { kind: "map", width: across, height: Math.ceil(shown / across), pictures: 1 };
}

/** The value that nearly all others stay below, in size: one that stands out must not turn the rest pale. */
export function reach(values: ArrayLike<number>): number {
  const step = Math.max(1, Math.floor(values.length / 5000));
  const sizes = Array.from({ length: Math.floor(values.length / step) }, (_, i) => Math.abs(values[i * step]!)).sort((a, b) => a - b);
  return sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes.at(-1) || 1;
}

const norm = (values: ArrayLike<number>): number => Math.sqrt(Array.prototype.reduce.call(values, (sum, v) => (sum as number) + (v as number) ** 2, 0) as number);

/** How large the noise is beside what it hides, in words. */
export function noiseWords(clear: Float32Array, sent: Float32Array): string {
  const noise = norm(sent.map((value, i) => value - clear[i]!));
  const own = norm(clear);
  if (noise === 0) return "This federation adds no noise here: both pictures are the same.";
  if (own === 0) return "In this round your examples changed nothing: all that the server receives is noise.";
  const times = noise / own;
  if (times >= 1.5) return `In this round the noise is about ${times < 10 ? times.toFixed(1) : Math.round(times)} times as large as what it hides.`;
  if (times > 0.67) return "In this round the noise is about as large as what it hides.";
  return `In this round the noise is about ${times < 0.01 ? "less than 1" : Math.round(100 * times)} % of what it hides.`;
}

export class NoiseView {
  readonly element: HTMLElement;
  private readonly task: Task;
  private readonly words = h("p", { class: "noise-words" });
  private readonly before: PictureView;
  private readonly after: PictureView;
  private readonly together: PictureView;
  private model: { round: number; parameters: Float32Array } | null = null;
  private change: { round: number; values: Float32Array } | null = null;
  private report: { round: number; clear: Float32Array | null; sent: Float32Array } | null = null;

  constructor(task: Task) {
    this.task = task;
    const sums = task.upload.what === "sums";
    const steps = task.training.kind === "private";
    this.before = new PictureView(
      task,
      "Yours, without noise",
      sums
        ? "What your examples add up to. It stays in this page."
        : steps
          ? "What your examples ask the model to change: the steps of your page, before noise went into each. It stays in this page."
          : "What your examples ask the model to change. It stays in this page.",
    );
    this.after = new PictureView(task, "What the server receives of you", "The same with the noise of your page. Nothing else of it leaves.");
    this.together = new PictureView(
      task,
      "What all changed together",
      "The difference between the shared model before and after a round. Everybody gets it.",
    );
    this.element = h(
      "section",
      { class: "card noise", "aria-labelledby": "noise", hidden: true },
      h("h2", { id: "noise" }, "What the noise does"),
      this.words,
      h("div", { class: "noise-pictures" }, this.before.element, this.after.element, this.together.element),
      h(
        "ul",
        { class: "legend shades" },
        h("li", {}, h("i", { class: "less" }), "less"),
        h("li", {}, h("i", { class: "none" }), "no change"),
        h("li", {}, h("i", { class: "more" }), "more"),
        h("li", {}, sums ? "Both pictures of yours have one scale; what all changed has another." : "All pictures have the same scale."),
      ),
    );
  }

  /** What this page reports in a round; `clear` is null where the report is noise alone. */
  noteReport(report: { round: number; clear: Float32Array | null; sent: Float32Array }): void {
    this.report = report;
    this.draw();
  }

  noteModel(model: { round: number; parameters: Float32Array }): void {
    const { size } = this.task.model;
    const parameters = model.parameters.slice(0, size);
    const before = this.model;
    this.model = { round: model.round, parameters };
    if (before?.round !== model.round - 1) return; // of several rounds it would be the sum
    this.change = { round: model.round, values: parameters.map((value, i) => value - before.parameters[i]!) };
    this.draw();
  }

  private draw(): void {
    const { report, change } = this;
    if (report === null) return;
    this.element.hidden = false;
    const { round, clear, sent } = report;
    say(
      this.words,
      clear === null
        ? `Round ${round}. There is no picture without noise: in this round your page reported noise alone.`
        : `Round ${round}. ${noiseWords(clear, sent)}`,
    );
    const own = Math.max(reach(sent), clear === null ? 0 : reach(clear));
    this.before.show(clear, own);
    this.after.show(sent, own);
    const sums = this.task.upload.what === "sums";
    this.together.show(change?.values ?? null, sums && change !== null ? reach(change.values) : own, change === null ? "" : `Round ${change.round}.`);
  }
}

/** One vector as a picture, with its name and a sentence. */
class PictureView {
  readonly element: HTMLElement;
  private readonly task: Task;
  private readonly title: string;
  private readonly picture = h("div", { role: "img" });
  private readonly when = h("span", { class: "quiet" });
  private canvases: HTMLCanvasElement[] = [];
  private layout = "";

  constructor(task: Task, title: string, words: string) {
    this.task = task;
    this.title = title;
    this.element = h(
      "figure",
      { hidden: true },
      this.picture,
      h("figcaption", {}, h("h3", {}, title), h("p", { class: "small quiet" }, words, " ", this.when)),
    );
  }

  show(values: Float32Array | null, scale: number, when = ""): void {
    this.element.hidden = values === null;
    if (values === null) return;
    const layout = layoutOf(this.task, values.length);
    this.lay(layout, values.length);
    say(this.when, when);
    const each = layout.width * layout.height;
    this.canvases.forEach((canvas, k) => paint(canvas, values.subarray(k * each, (k + 1) * each), scale));
  }

  private lay(layout: Layout, values: number): void {
    const key = JSON.stringify([layout, values]);
    if (key === this.layout) return;
    this.layout = key;
    const { kind, width, height, pictures } = layout;
    this.canvases = Array.from({ length: pictures }, () => h("canvas", { width, height }));
    const shown = Math.min(values, width * height);
    const words =
      kind === "classes"
        ? `one small picture for each of ${pictures} classes`
        : `one dot for each of ${shown < values ? `the first ${counted(shown, "value")} of ${counted(values, "value")}` : counted(values, "value")}`;
    this.picture.className = kind;
    this.picture.setAttribute("aria-label", `${this.title}: ${words}`);
    fill(
      this.picture,
      ...this.canvases.map((canvas, k) => (kind === "classes" ? h("span", {}, canvas, h("b", {}, this.task.classes[k])) : canvas)),
    );
  }
}

function paint(canvas: HTMLCanvasElement, values: Float32Array, scale: number): void {
  const context = canvas.getContext("2d");
  const image = context?.createImageData(canvas.width, canvas.height);
  if (!context || !image) return;
  for (let k = 0; k < canvas.width * canvas.height; k += 1) image.data.set([...shade((values[k] ?? 0) / scale), 255], 4 * k);
  context.putImageData(image, 0, 0);
}
