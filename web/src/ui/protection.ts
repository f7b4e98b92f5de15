/** The slider for one's own protection: which number it sets, what that means, what is proven, and what it costs. */

import { planFor, type Budget, type Choice, type Outlook, type Reports } from "../session/session.ts";
import type { Detail, Task } from "./api.ts";
import { wordsOf } from "../wire/refusal.ts";
import { details, fill, h, s, say } from "./dom.ts";
import { sentence } from "./front.ts";
import { barsOf, bindsNothing, groupsOf, provenAfter, shortfall, stopsOf, suggested, termsOf, unbounded, type Stop, type Terms } from "./stops.ts";
import {
  counted,
  DECLINING,
  epsilon,
  inHundred,
  meaning,
  NO_MEANINGFUL_PROTECTION,
  noiseEffect,
  ownNoise,
  percent,
  publicChoice,
  reachWords,
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
  private readonly detail: Pick<Detail, "round" | "sample">;
  private outlook: Outlook | null = null;
  private readonly changed: () => void;
  private readonly slider = h("input", { type: "range", id: "protection", min: 0, step: 1 });
  private readonly value = h("p", { class: "slider-value" });
  private readonly about = h("p", { class: "small quiet" });
  private readonly words = h("div", { class: "slider-words", "aria-hidden": "true" });
  private readonly sets = h("p");
  private readonly means = h("p");
  private readonly picture = h("div", { class: "guess", "aria-hidden": "true" });
  private readonly proof = h("p");
  private readonly effect = h("p");
  private readonly reach = h("p", { class: "small reach", role: "status" });
  private readonly spending = h("div", { class: "spending" });
  private readonly claimed = h("input", { type: "checkbox", id: "accept-claimed" });
  private readonly open = h("input", { type: "checkbox", id: "accept-unbounded" });
  private readonly set: (budget: Budget) => void;
  private asked = 0;
  /** the question that the outlook answers */
  private answered = 0;
  /** whether the person has set the slider: until then it stands at what they agreed to before */
  private touched = false;

  constructor(
    detail: Detail,
    own: () => boolean,
    changed: () => void,
    set: (budget: Budget) => void,
  ) {
    const { task } = detail;
    this.task = task;
    this.detail = detail;
    this.own = own;
    this.changed = changed;
    this.set = set;
    this.terms = termsOf(task);
    this.stops = stopsOf(task, detail.history).filter(({ limit }) => Number.isFinite(limit));
    this.element = h("div", { class: "protection" }, ...this.body(), ...this.consents(changed));
    this.slider.addEventListener("input", () => this.move(this.slider.value));
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

  /** The box of this part that has to be ticked first; null where there is none. */
  get consent(): HTMLElement | null {
    return [this.claimed, this.open].find((box) => box.isConnected && !box.checked) ?? null;
  }

  /** Why this budget pays for nothing, and what helps; empty where it pays for a round, or nobody knows yet. */
  get shortfall(): string {
    if (this.outlook === null || this.stops.length === 0 || bindsNothing(this.task)) return "";
    const most = Number(this.slider.value) === this.stops.length - 1;
    return shortfall(this.outlook, { most, sample: this.own() && this.detail.sample });
  }

  /** The reports that the slider's position pays for; null until they are known. */
  get reports(): Reports | null {
    const { stop, outlook } = this;
    if (stop === undefined || outlook === null || this.answered !== this.asked) return null;
    return { first: this.task.rounds.count - outlook.left + 1, rounds: outlook.rounds, noise: stop.noise };
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
    this.slider.value = String(suggested(this.stops, this.task.budget?.limit));
    this.drawWords();
    const part = (title: string, ...content: HTMLElement[]): HTMLElement =>
      h("div", {}, h("h3", {}, title), ...content);
    const [shown, more] = publicChoice(this.task.choices.length);
    return [
      h(
        "div",
        { class: "slider-ends" },
        h("label", { for: "protection" }, "Protect me more"),
        h("span", { "aria-hidden": "true" }, "Help more"),
      ),
      h("div", { class: "slider" }, this.slider, this.ticks(), this.words),
      this.value,
      this.about,
      h("div", { class: "reach-row" }, this.spending, this.reach),
      h("p", { class: "small quiet public-choice" }, shown),
      details(
        "What this means",
        h("p", {}, `Everything that leaves this page tells a little. You decide how much it may tell in all rounds together. When that is used up, ${DECLINING}`),
        h(
          "div",
          { class: "means" },
          part("Which number this sets", this.sets),
          part("What it means", this.means, this.picture),
          part("What is proven", this.proof),
          part("What it does to the model", this.effect),
          part("What others see of it", h("p", {}, more)),
        ),
      ),
    ];
  }

  /** A mark for each place of the slider; too many would be a line. */
  private ticks(): HTMLElement {
    const count = this.stops.length <= 21 ? this.stops.length : 0;
    return h("div", { class: "ticks", "aria-hidden": "true" }, ...Array.from({ length: count }, () => h("i")));
  }

  /** The words of the stops, below them; a tap on one goes there. */
  private drawWords(): void {
    const last = Math.max(1, this.stops.length - 1);
    this.words.replaceChildren(
      ...groupsOf(this.stops, this.terms).map(({ word, first, last: end }) => {
        const element = h("span", { onclick: () => this.move(String(end)), "data-first": first, "data-last": end }, word);
        element.style.setProperty("--at", String((first + end) / 2 / last));
        return element;
      }),
    );
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

  private move(to: string): void {
    this.touched = true;
    this.slider.value = to;
    this.tell();
  }

  private tell(): void {
    const stop = this.stop;
    if (stop === undefined) return;
    const { basis, adjacency, delta: slack } = this.terms;
    const { word } = strength(basis === "proven" ? stop.limit : Infinity, adjacency, slack);
    const at = Number(this.slider.value);
    for (const one of this.words.children as HTMLCollectionOf<HTMLElement>) {
      one.classList.toggle("here", at >= Number(one.dataset["first"]) && at <= Number(one.dataset["last"]));
    }
    say(this.about, capital(`${terms(this.terms)}.`));
    say(
      this.value,
      basis === "proven"
        ? `${capital(word)}: epsilon at most ${epsilon(stop.limit)}`
        : `Only a claim: epsilon at most ${epsilon(stop.limit)}`,
    );
    this.value.dataset["limit"] = epsilon(stop.limit);
    this.slider.setAttribute("aria-valuetext", `epsilon ${epsilon(stop.limit)}, ${word}`);
    say(
      this.sets,
      `Your budget: the largest total epsilon that this page's record allows at this address (${terms(this.terms)}). ${this.noiseWords(stop)}`,
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
    this.changed();
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
    const { round: done } = this.detail;
    const question = { budget: this.budget, noise: stop.noise ?? undefined, own: this.own(), done, usual: this.usual };
    planFor(this.task, question).then(
      (outlook) => asked === this.asked && this.show(outlook),
      (problem: unknown) => asked === this.asked && this.show(null, sentence(wordsOf(problem))),
    );
  }

  private show(outlook: Outlook | null, problem = ""): void {
    this.outlook = outlook;
    this.answered = this.asked;
    const first = String(suggested(this.stops, outlook?.terms.limit));
    if (outlook !== null && !this.touched && first !== this.slider.value) return this.move(first); // who comes back agreed to that
    const words = outlook === null ? problem : `${reachWords(outlook)} ${spentBefore(outlook.before, outlook.terms)}`.trim();
    say(this.reach, words);
    Object.assign(this.reach.dataset, { rounds: outlook?.rounds ?? "", before: outlook?.before ?? "" });
    this.drawSpending(outlook);
    this.changed();
  }

  /** Epsilon after each round, up to the limit: what the rounds beyond it would cost is not spent. */
  private drawSpending(outlook: Outlook | null): void {
    const bars = outlook === null ? [] : barsOf(outlook.perRound, this.budget.limit);
    fill(
      this.spending,
      s(
        "svg",
        { viewBox: `0 0 ${Math.max(1, bars.length)} 10`, preserveAspectRatio: "none", role: "img", "aria-label": "Epsilon after each round, beside your limit" },
        ...bars.map(({ share, paid }, k) =>
          s("rect", { class: paid ? "paid" : "unpaid", x: k + 0.12, width: 0.76, y: 10 - 10 * share, height: 10 * share }),
        ),
      ),
    );
    this.spending.hidden = bars.length < 2;
  }
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
