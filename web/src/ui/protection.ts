/** The slider for one's own protection: which number it sets, what that means, what is proven, and what it costs. */

import { planFor, type Budget, type Choice } from "../session/session.ts";
import type { RoundEntry, Task } from "./api.ts";
import { fill, h, s, say } from "./dom.ts";
import { provenAfter, stopsOf, termsOf, unbounded, type Stop, type Terms } from "./stops.ts";
import {
  counted,
  epsilon,
  inHundred,
  meaning,
  NO_MEANINGFUL_PROTECTION,
  noiseEffect,
  ownNoise,
  percent,
  publicChoice,
  spentBefore,
  strength,
  surest,
  terms,
} from "./words.ts";

/** The limit where nothing is counted, because nothing that leaves has a bound. */
const UNUSED = 1;

export class Protection {
  readonly element: HTMLElement;
  private readonly task: Task;
  private readonly terms: Terms;
  private readonly own: () => boolean;
  private readonly stops: Stop[];
  private readonly slider = h("input", { type: "range", id: "protection", min: 0, step: 1 });
  private readonly value = h("p", { class: "slider-value" });
  private readonly sets = h("p");
  private readonly means = h("p");
  private readonly picture = h("div", { class: "guess", "aria-hidden": "true" });
  private readonly proof = h("p");
  private readonly effect = h("p");
  private readonly reach = h("p", { class: "quiet" });
  private readonly claimed = h("input", { type: "checkbox", id: "accept-claimed" });
  private readonly open = h("input", { type: "checkbox", id: "accept-unbounded" });
  private readonly set: (budget: Budget) => void;
  private asked = 0;

  constructor(
    task: Task,
    known: readonly RoundEntry[],
    own: () => boolean,
    changed: () => void,
    set: (budget: Budget) => void,
  ) {
    this.task = task;
    this.own = own;
    this.set = set;
    this.terms = termsOf(task);
    this.stops = stopsOf(task, known).filter(({ limit }) => Number.isFinite(limit));
    this.element = h("div", { class: "protection" }, ...this.body(), ...this.consents(changed));
    this.slider.addEventListener("input", () => this.tell());
    this.tell();
  }

  /** What the person decided; null while a consent is missing. */
  get choice(): Choice | null {
    const needsClaimed = this.terms.basis === "claimed";
    const needsOpen = unbounded(this.task).length > 0;
    if ((needsClaimed && !this.claimed.checked) || (needsOpen && !this.open.checked)) return null;
    return {
      budget: this.budget,
      ...(this.stop?.noise != null ? { noise: this.stop.noise } : {}),
      ...(needsClaimed ? { acceptClaimed: true } : {}),
      ...(needsOpen ? { acceptUnbounded: true } : {}),
    };
  }

  /** Counts anew how far the budget reaches: one's own examples and a public sample are counted apart. */
  recount(): void {
    if (this.stop !== undefined) this.ask(this.stop);
  }

  private get stop(): Stop | undefined {
    return this.stops[Number(this.slider.value)];
  }

  private get budget(): Budget {
    const { basis, delta: slack, adjacency } = this.terms;
    return { limit: this.stop?.limit ?? UNUSED, delta: slack, basis, adjacency: adjacency as Budget["adjacency"] };
  }

  /** What the federation proposes, wherever the slider stands. */
  private get usual(): Budget {
    return { ...this.budget, limit: this.task.budget?.limit ?? this.stops.at(-1)?.limit ?? UNUSED };
  }

  private body(): HTMLElement[] {
    if (this.stops.length === 0) {
      return [h("p", {}, "There is nothing to set here: this federation adds no noise that a proof could be about.")];
    }
    this.slider.max = String(this.stops.length - 1);
    this.slider.value = String(this.suggested());
    const part = (title: string, ...content: HTMLElement[]): HTMLElement =>
      h("div", {}, h("h3", {}, title), ...content);
    return [
      h(
        "p",
        {},
        "Everything that leaves this page tells a little. You decide how much it may tell in all rounds together; when that is used up, the page sends nothing more.",
      ),
      h("p", { class: "public-choice" }, publicChoice(this.task.choices.length)),
      h("label", { for: "protection" }, "My protection"),
      this.slider,
      h(
        "div",
        { class: "slider-ends", "aria-hidden": "true" },
        h("span", {}, "protect me more"),
        h("span", {}, "help more"),
      ),
      this.value,
      this.reach,
      h(
        "div",
        { class: "means" },
        part("Which number this sets", this.sets),
        part("What it means", this.means, this.picture),
        part("What is proven", this.proof),
        part("What it does to the model", this.effect),
      ),
    ];
  }

  private consents(changed: () => void): HTMLElement[] {
    const found: HTMLElement[] = [];
    const check = (input: HTMLInputElement, text: string): HTMLElement => {
      input.addEventListener("change", changed);
      return h("div", { class: "note warn" }, h("label", { class: "check" }, input, h("span", {}, text)));
    };
    if (this.terms.basis === "claimed") {
      found.push(
        check(
          this.claimed,
          "The figure of this federation is claimed by its authors and not proven. I have read that, and want my page to count it all the same.",
        ),
      );
    }
    const open = unbounded(this.task);
    if (open.length > 0) {
      found.push(
        check(
          this.open,
          `Of what leaves in this federation, nothing is proven about: ${open.join(", ")}. Whoever sees it may learn my examples from it. I allow that.`,
        ),
      );
    }
    return found;
  }

  private suggested(): number {
    const wanted = this.task.budget?.limit;
    if (wanted === undefined) return this.stops.length - 1;
    const affordable = this.stops.filter(({ limit }) => limit <= wanted * (1 + 1e-9)).length - 1;
    return affordable >= 0 ? affordable : this.stops.length - 1;
  }

  private tell(): void {
    const stop = this.stop;
    if (stop === undefined) return;
    const { basis, adjacency, delta: slack } = this.terms;
    const { word } = strength(basis === "proven" ? stop.limit : Infinity, adjacency, slack);
    say(
      this.value,
      basis === "proven"
        ? `At most epsilon ${epsilon(stop.limit)}: ${word}`
        : `At most epsilon ${epsilon(stop.limit)}, as claimed`,
    );
    this.slider.setAttribute("aria-valuetext", `epsilon ${epsilon(stop.limit)}, ${word}`);
    say(
      this.sets,
      `Your budget: the largest total epsilon that this page's record allows (${terms(this.terms)}). ${this.noiseWords(stop)}`,
    );
    say(
      this.means,
      basis === "proven"
        ? meaning(stop.limit, adjacency, slack)
        : "Nothing that could be relied on: the figure counts what the authors of the method state.",
    );
    this.drawGuess(basis === "proven" ? stop.limit : Infinity, slack);
    say(this.proof, this.proofWords(stop));
    say(this.effect, this.effectWords(stop));
    this.set(this.budget);
    this.ask(stop);
  }

  private noiseWords(stop: Stop): string {
    const own = this.task.choices[0]?.noise;
    return stop.noise === null || own === undefined ? "" : ownNoise(stop.noise / own);
  }

  private proofWords(stop: Stop): string {
    if (this.terms.basis === "claimed") {
      const total = provenAfter(this.task, this.terms.adjacency, stop.rounds);
      const about = terms({ basis: "proven", adjacency: this.terms.adjacency, delta: total.delta });
      return `The claim is not. Over ${counted(stop.rounds, "round")}, epsilon ${epsilon(total.epsilon)} is (${about})${total.epsilon > NO_MEANINGFUL_PROTECTION ? ": no meaningful protection" : ""}.`;
    }
    if (stop.limit > NO_MEANINGFUL_PROTECTION)
      return "The figure is proven, but it is so large that it protects nobody in practice.";
    return "The figure holds whatever the server does with what it gets, even if it is malicious, and whatever it knows already. It holds as far as this page does what it says.";
  }

  private effectWords(stop: Stop): string {
    if (stop.noise !== null) {
      const usual = this.stops[this.stops.length - 1]?.accuracy ?? null;
      return noiseEffect(usual, stop.alone, stop.accuracy, this.task.clients);
    }
    if (stop.accuracy === null) {
      return "This federation does not know that yet. As a rule: the more noise, and the fewer rounds you take part in, the less the model learns from you.";
    }
    return `After ${counted(stop.rounds, "round")} the model of this federation got ${percent(stop.accuracy)} of unseen examples right.`;
  }

  private drawGuess(value: number, slack: number): void {
    const share = value > NO_MEANINGFUL_PROTECTION ? 1 : surest(value, slack);
    fill(
      this.picture,
      h(
        "div",
        { class: "bar-track" },
        s(
          "svg",
          { viewBox: "0 0 100 8", preserveAspectRatio: "none" },
          s("rect", { class: "half", width: 50, height: 8 }),
          s("rect", { class: "more", x: 50, width: 100 * share - 50, height: 8 }),
        ),
      ),
      h(
        "span",
        { class: "small quiet" },
        share === 1
          ? "they may be right every time"
          : `guessing: 50 in 100; after seeing everything: ${inHundred(share).replace("times ", "")}`,
      ),
    );
  }

  /** How far the budget reaches, counting what this browser has spent before. */
  private ask(stop: Stop): void {
    this.asked += 1;
    const asked = this.asked;
    planFor(this.task, { budget: this.budget, noise: stop.noise ?? undefined, own: this.own(), done: 0, usual: this.usual }).then(
      (outlook) => {
        if (asked !== this.asked) return;
        const whole = this.task.rounds.count;
        const words =
          outlook.rounds >= whole
            ? `This is enough for all ${whole} rounds.`
            : `This is enough for ${outlook.rounds} of ${whole} rounds; then your page declines.`;
        say(this.reach, `${words} ${spentBefore(outlook.before, outlook.terms)}`.trim());
      },
      () => asked === this.asked && say(this.reach, ""),
    );
  }
}
