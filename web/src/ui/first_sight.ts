/** A federation at first sight: what it is, who is here, what is proven, what to expect, and one button. */

import type { PublicExample } from "../session/session.ts";
import type { Detail, Expected, SuggestedBudget, Summary, Task } from "./api.ts";
import { fill, h, type Child } from "./dom.ts";
import { full, fullWords, over, purpose, stateWords } from "./front.ts";
import { samplePictures } from "./sample_pictures.ts";
import { stopsOf, suggested, termsOf, unbounded } from "./stops.ts";
import { CASES, counted, inHundred, NO_MEANINGFUL_PROTECTION, percent, surest, titled } from "./words.ts";

/** More places than this are told in words alone. */
const MOST_DOTS = 40;

export class FirstSight {
  readonly element: HTMLElement;
  readonly button = h("button", { type: "button", class: "main large", id: "join" }, "Join");
  private tick: ReturnType<typeof setTimeout> | undefined;
  private readonly here = h("div", { class: "here" });

  constructor(detail: Detail, invited: boolean, several: boolean, pictures: Promise<PublicExample[]> | null) {
    const whole = wholeBudget(detail.task);
    this.element = h(
      "section",
      { class: "first-sight", "aria-labelledby": "title" },
      several && h("p", { class: "small" }, h("a", { href: "#/" }, "All federations")),
      h("h1", { id: "title" }, titled(detail.title)),
      h("p", { class: "lead" }, `${purpose(detail.summary)} Your examples stay on this device.`),
      samplePictures(detail, pictures),
      h(
        "div",
        { class: "join-row" },
        this.button,
        detail.by_invitation &&
          !invited &&
          h("p", { class: "small quiet" }, "By invitation: open the link that you were sent, or enter your invitation in the next step."),
      ),
      this.here,
      h(
        "ul",
        { class: "plain-facts" },
        h("li", { class: whole?.basis === "proven" ? "proven" : "open" }, protectionLine(whole)),
        ...expectedLines(detail.task.expected ?? null).map((line) => h("li", {}, line)),
      ),
    );
    this.tell(detail);
  }

  /** Who is here now; a countdown goes on by itself. */
  tell(one: Summary): void {
    clearTimeout(this.tick);
    const soon = one.starts_in ?? 0;
    if (soon > 1) this.tick = setTimeout(() => this.tell({ ...one, starts_in: soon - 1 }), 1000);
    fill(
      this.here,
      dots(one),
      h("p", {}, full(one) ? stateWords(one) : `${stateWords(one)} ${placesWords(one)}`),
      full(one) && h("p", { class: "note warn" }, fullWords(one)),
    );
  }
}

function dots(one: Summary): Child {
  if (one.clients > MOST_DOTS || over(one)) return null;
  const taken = one.clients - one.free;
  return h(
    "div",
    { class: "dots", "aria-hidden": "true" },
    ...Array.from({ length: one.clients }, (_, k) => h("i", { class: k < taken ? "taken" : "" })),
  );
}

export function placesWords({ clients, free, starts_in: soon }: Pick<Summary, "clients" | "free" | "starts_in">): string {
  const places = free === clients ? `All ${counted(clients, "place")} are free.` : `${free} of ${counted(clients, "place")} ${free === 1 ? "is" : "are"} free.`;
  return typeof soon === "number" ? `The first round begins in ${counted(Math.ceil(soon), "second")}. ${places}` : places;
}

/**
 * The budget of whoever changes nothing: the one that the federation suggests, unless its first round costs more; else what
 * all rounds cost. Null where nothing bounds what leaves, whatever the suggestion says.
 */
export function wholeBudget(task: Task): Pick<SuggestedBudget, "limit" | "delta" | "basis" | "adjacency"> | null {
  const { budget } = task;
  const stops = stopsOf(task);
  if (termsOf(task).basis === "proven" && unbounded(task).length > 0) return null;
  const limit = stops[suggested(stops, budget?.limit)]?.limit ?? Infinity;
  if (budget !== null) return limit > budget.limit ? { ...budget, limit } : budget;
  return Number.isFinite(limit) ? { ...termsOf(task), limit } : null;
}

/** What is proven, in one plain line: how often somebody who sees everything could be right. */
export function protectionLine(budget: ReturnType<typeof wholeBudget>): string {
  if (budget === null) return "Nothing is proven about what leaves: take part with public examples.";
  if (budget.basis !== "proven") return "Protection is claimed and not proven here: take part with public examples.";
  const [question] = CASES[budget.adjacency] ?? CASES["client"]!;
  if (budget.limit > NO_MEANINGFUL_PROTECTION) return "No meaningful protection is proven: take part with public examples.";
  const right = inHundred(surest(budget.limit, budget.delta)).replace("times ", "");
  return `Proven: somebody who sees all that you send, and guesses whether ${question}, is right at most ${right}. A blind guess is right 50 in 100.`;
}

/** What was reached in tests; nothing where nothing was measured. */
export function expectedLines(expected: Expected | null): string[] {
  if (expected === null) return [];
  const { accuracy, low, high, participants, seeds } = expected;
  const spread = seeds > 1 && high > low ? ` (${percent(low)} to ${percent(high)} in ${counted(seeds, "run")})` : "";
  return [`The model reached ${percent(accuracy)} in tests${spread}, with ${counted(participants, "participant")}.`];
}
