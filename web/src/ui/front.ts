/** The first view: what this is, and the federations there are. */

import { ASKING, figure, type Summary, type Task } from "./api.ts";
import { h, type Child } from "./dom.ts";
import type { SessionState } from "../session/session.ts";
import { counted, duration, epsilon, percent, strength, terms, titled } from "./words.ts";

/** What stands on the first view before the server has answered, too: web/index.html has the same words. */
export const TITLE = "Learn together. Keep your data.";
export const LEAD =
  "Help to train a model without handing over your data. Your examples stay in this page; what leaves is a summary with noise in it.";

export function frontView(found: readonly Summary[]): HTMLElement {
  return h(
    "div",
    {},
    h("h1", {}, TITLE),
    h("p", { class: "lead" }, LEAD),
    found.length === 0 && h("p", {}, "This server has no federation at the moment. Ask whoever sent you here."),
    ...LISTS.flatMap((title) => listed(title, found.filter((one) => listOf(one) === title))),
  );
}

const LISTS = ["Open to join", "By invitation", "Full", "Over"] as const;

/** Under which title the first view lists a federation. */
export function listOf(one: Pick<Summary, "state" | "free" | "by_invitation">): (typeof LISTS)[number] {
  if (over(one)) return "Over";
  if (one.by_invitation) return "By invitation";
  return one.free > 0 ? "Open to join" : "Full";
}

/** Whether a newcomer would be turned away for want of a place. */
export function full(one: Pick<Summary, "state" | "free" | "watched">): boolean {
  return !one.watched && !over(one) && one.free <= 0;
}

/** What somebody reads who finds all places taken. */
export function fullWords({ absence }: Pick<Summary, "absence">): string {
  const away = absence === null ? "" : `, or stays away for ${duration(absence)}`;
  return `All places are taken at the moment. One becomes free when somebody leaves${away}. If you took part in this browser before and nobody has your place, you can go on.`;
}

/** What a closed page means for the place. */
export function absenceWords({ absence }: Pick<Summary, "absence">): string {
  return absence === null
    ? "Your place is kept while this page is closed or has no connection."
    : `Your place is kept while this page is closed or has no connection. After ${duration(absence)} it may go to somebody else who needs one; your record stays.`;
}

/** States of a page that holds no place: before it has one, and when its part is over. */
const WITHOUT_PLACE: readonly SessionState[] = ["new", "preparing", "ended", "left", "failed"];

/** What a closed page means for the place, to somebody who has one. */
export function placeWords(state: SessionState, one: Pick<Summary, "absence">): string {
  return WITHOUT_PLACE.includes(state) ? "" : absenceWords(one);
}

export function over({ state }: Pick<Summary, "state">): boolean {
  return state === "finished" || state === "failed";
}

function listed(title: string, some: readonly Summary[]): HTMLElement[] {
  if (some.length === 0) return [];
  return [
    h("h2", { class: "list-title" }, title),
    h("ul", { class: "federations" }, ...some.map((one) => h("li", {}, card(one)))),
  ];
}

function card(one: Summary): HTMLElement {
  return h(
    "article",
    { class: "card" },
    h("h3", {}, h("a", { href: `#/${encodeURIComponent(one.name)}` }, titled(one.title))),
    h("p", { class: "small" }, purpose(one.summary)),
    h("p", { class: "small quiet" }, `${stateWords(one)}${one.accuracy === null ? "" : ` The model is right ${percent(one.accuracy)} of the time.`}`),
    h("div", { class: "row" }, ...stateBadges(one)),
  );
}

/** In one line, what is behind the protection of a federation. */
export function protectionWords({ budget }: Pick<Summary, "budget">): string {
  if (budget === null) return "Protection: see its privacy statement before you join.";
  const most = `Protection: at most epsilon ${epsilon(budget.limit)} (${terms(budget)}).`;
  return budget.basis === "proven"
    ? `${most} ${capital(strength(budget.limit, budget.adjacency, budget.delta).word)}.`
    : `${most} The claim is not proven.`;
}

const STATES: Record<Summary["state"], [string, string]> = {
  waiting: ["waiting for participants", "badge"],
  training: ["training now", "badge live"],
  finished: ["finished", "badge good"],
  failed: ["stopped", "badge bad"],
};

/** Text and class of each badge: where it stands, and whether all places are taken. */
export function badgesOf(one: Pick<Summary, "state" | "free" | "watched">): [string, string][] {
  return [STATES[one.state] ?? [one.state, "badge"], ...(full(one) ? [["full", "badge warn"] as [string, string]] : [])];
}

export function stateBadges(one: Pick<Summary, "state" | "free" | "watched">): HTMLElement[] {
  return badgesOf(one).map(([text, kind]) => h("span", { class: kind }, text));
}

export function stateWords(one: Summary): string {
  const here = one.participants === 0 ? "nobody is here now" : `${counted(one.participants, "participant")} here now`;
  const goes = one.round > 0 ? "goes on" : "begins";
  if (one.state === "waiting" && one.participants >= one.quorum) return `${capital(here)}; it ${goes} in a moment.`;
  if (one.state === "waiting") return `${capital(here)}; it ${goes} with ${one.quorum === 1 ? "the first" : one.quorum}.`;
  if (one.state === "training") return `Round ${Math.min(one.round + 1, one.rounds)} of ${one.rounds}, ${here}.`;
  return sentence(one.why || `${one.round} of ${one.rounds} rounds are done`);
}

/** What leaves the page and what stays, in plain words. */
export function leavesView(task: Task): HTMLElement {
  const strengths = task.strengths[0];
  const noisy = task.training.kind !== "plain" || (strengths !== undefined && strengths.mechanism.name !== "none");
  const thing = {
    update: "how the model should change", weights: "how its model looks after learning",
    sums: "how features vary or how the model should change, added up over your examples",
  }[task.upload.what];
  const open = (strengths?.releases ?? []).every(({ guarantees }) =>
    guarantees.every((one) => !Number.isFinite(figure(one.epsilon))),
  );
  const how: Child = noisy
    ? `in each round, ${counted(task.upload.values, "number")} that say ${thing}, with random noise added on this device before they leave`
    : `in each round, ${counted(task.upload.values, "number")} that say ${thing}, with no noise at all`;
  return h(
    "div",
    { class: "leaves" },
    h(
      "div",
      {},
      h("h3", {}, "Stays in this page"),
      h(
        "ul",
        {},
        h("li", {}, "your examples and what they show"),
        task.upload.samples === null && h("li", {}, "how many you have"),
        h("li", {}, "how well the model fits them"),
        h("li", {}, "your budget, and the record of what has left"),
      ),
    ),
    h(
      "div",
      { class: "out" },
      h("h3", {}, "Leaves this page"),
      h(
        "ul",
        {},
        h("li", {}, how),
        task.upload.samples !== null && h("li", {}, "once, the number of your examples, with noise added"),
        h("li", {}, "that this page takes part, and when; as with any website, your network address"),
        h("li", {}, "how long it computes in each round, which hints at how many examples you have"),
        h("li", {}, "a random name that this page made up, so that the server knows it again"),
      ),
      open &&
        h("p", { class: "note bad" }, "Nothing is proven about what leaves. Take part with public examples only."),
    ),
  );
}

/** What a page says that is not told by itself what happens. */
export function askingWords(why: string): string {
  return `This page is not told at once what happens, and asks every ${ASKING} seconds instead. The server says: ${sentence(why)}`;
}

/** The first thought of a summary, without what the operator changed: the rest stands in the details. */
export function purpose(summary: string): string {
  const [first = ""] = summary.replace(/\s*\([^()]*\)\s*$/, "").split(/;\s/);
  return sentence(first || summary);
}

export function sentence(text: string): string {
  const begun = capital(text.trim());
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
