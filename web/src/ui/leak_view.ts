/** What the server could make of a drawing, before joining: an attack in the page on reports that go nowhere. */

import { openLeaks, type Leaks, type PictureGuess, type PictureLeak, type PublicExample, type Reports } from "../session/session.ts";
import { wordsOf } from "../wire/refusal.ts";
import type { Task } from "./api.ts";
import { pictureSize } from "./data_choice.ts";
import { fill, h, say } from "./dom.ts";
import { sentence } from "./front.ts";
import { Pad } from "./pad.ts";
import { pictureOf } from "./sample_pictures.ts";
import { counted } from "./words.ts";

/** Milliseconds without a change after which reports are attacked. */
const PAUSE = 120;

export class LeakView {
  readonly element = h("details", { class: "leak" });
  private readonly task: Task;
  private readonly leaks: Leaks;
  private readonly own = new PictureFrame("A public picture");
  private readonly bare = new PictureFrame("Without noise");
  private readonly sent = new PictureFrame("With your protection");
  private readonly verdict = h("p", { class: "leak-verdict", role: "status" });
  private pad: Pad | null = null;
  private reports: Reports | null = null;
  private timer = 0;
  private turn = 0;

  private constructor(task: Task, leaks: Leaks) {
    this.task = task;
    this.leaks = leaks;
    this.element.append(h("summary", {}, "What the server could see"));
    this.element.addEventListener("toggle", () => this.element.open && this.unfold());
  }

  /** Null where nothing can be shown: no pictures, or a model without a closed form. */
  static of(task: Task, pictures: Promise<PublicExample[]> | null): LeakView | null {
    const leaks = pictures && openLeaks(task, pictures);
    return leaks && new LeakView(task, leaks);
  }

  /** Attacks the reports that the slider's position pays for; null while they are not known. */
  follow(reports: Reports | null): void {
    if (JSON.stringify(reports) === JSON.stringify(this.reports)) return;
    this.reports = reports;
    this.refresh();
  }

  /** Ends what computes. */
  close(): void {
    window.clearTimeout(this.timer);
    this.turn += 1;
    this.leaks.close();
  }

  /** Fills the fold when it is opened first: until then nothing is computed. */
  private unfold(): void {
    if (this.pad !== null) return;
    const pad = new Pad("Draw an example here", () => this.refresh());
    this.pad = pad;
    this.element.append(
      h(
        "div",
        { class: "stack" },
        h("p", { class: "small" }, "What the server could make of one picture in your reports, by an attacker that knows all your other examples. It is computed in this page. Nothing is sent."),
        h("div", { class: "leak-pictures" }, this.own.element, this.bare.element, this.sent.element),
        this.verdict,
        h("p", { class: "small quiet" }, "A blur is the average of public pictures: what one guesses who knows nothing. An attack shows the least that leaks, and a better one may find more. Only the epsilon above is proven."),
        h("div", { class: "leak-pad" }, h("p", { class: "small" }, "Draw your own:"), pad.canvas, h("button", { type: "button", onclick: () => pad.clear() }, "Clear")),
      ),
    );
    say(this.verdict, "One moment…");
    this.refresh();
  }

  private refresh(): void {
    if (this.pad === null) return;
    window.clearTimeout(this.timer);
    this.turn += 1; // what is computed now is about something else
    this.timer = window.setTimeout(() => void this.attack(), PAUSE);
  }

  private async attack(): Promise<void> {
    const { pad, reports, turn } = this;
    if (pad === null || reports === null) return;
    const [height, width] = pictureSize(this.task);
    try {
      const leak = await this.leaks.attack(pad.isEmpty ? null : pad.picture(width, height), reports);
      if (turn === this.turn) this.show(leak, reports, pad.isEmpty);
    } catch (problem) {
      if (turn === this.turn) say(this.verdict, sentence(wordsOf(problem)));
    }
  }

  private show(leak: PictureLeak, reports: Reports, isPublic: boolean): void {
    this.own.show(this.task, leak.values, isPublic ? "A public picture" : "Your drawing");
    this.bare.show(this.task, leak.bare?.values ?? null);
    this.sent.show(this.task, leak.sent?.values ?? null);
    say(this.verdict, verdict(leak, reports.rounds, isPublic));
    const { bare, sent, gradients } = leak;
    Object.assign(this.element.dataset, { turn: this.turn, gradients, bare: bare?.isNearest ?? "", sent: sent?.isNearest ?? "" });
  }
}

/** What the attack found, in words. */
export function verdict({ bare, sent, gradients, candidates }: Omit<PictureLeak, "values">, rounds: number, isPublic: boolean): string {
  const it = isPublic ? "the right one" : "yours";
  const picks = ({ isNearest }: PictureGuess): string => (isNearest ? `picks ${it}` : "picks another one");
  if (rounds === 0) return "This budget pays for no report.";
  if (gradients === 0) return "This budget pays for the first report alone, which this attack cannot read.";
  if (bare === null || sent === null) return "By chance this picture is in none of the batches that these reports are made of.";
  return `Of ${counted(candidates, "picture")}, the attacker ${picks(bare)} without noise. With the noise in ${counted(gradients, "report")} it ${picks(sent)}.`;
}

/** A picture with its name; empty until there is one. */
class PictureFrame {
  readonly element: HTMLElement;
  private readonly place = h("div", { class: "frame" });
  private readonly name: HTMLElement;

  constructor(private title: string) {
    this.name = h("figcaption", { class: "small" }, title);
    this.element = h("figure", {}, this.place, this.name);
  }

  show(task: Task, values: Float32Array | null, title = this.title): void {
    this.title = title;
    say(this.name, title);
    fill(this.place, values === null ? h("span", { class: "small" }, "none") : pictureOf(values, task, title));
  }
}
