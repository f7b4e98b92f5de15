/** The members of a watched run: who is there, what each has done and spent, and why reports did not come. */

import { figure, type MemberActivity, type MemberReason, type RunLive, type Spent, type Summary } from "../ui/api.ts";
import { fill, h, say, type Child } from "../ui/dom.ts";
import { over, sentence } from "../ui/front.ts";
import { change, counted, delta, epsilon, listed, onlooker, strength } from "../ui/words.ts";

/** Reasons that are shown, the newest. */
const REASONS = 50;

export class MembersView {
  readonly element: HTMLElement;
  private readonly waiting = h("p", { class: "quiet" });
  private readonly terms = h("p", { class: "small quiet" });
  private readonly list = h("ul", { class: "slots members" });
  private readonly reasons = h("div", { class: "stack" });
  private readonly reasonsTitle = h("h3");
  private readonly problem = h("p", { class: "note bad", hidden: true });

  constructor() {
    this.element = h(
      "section",
      { class: "card", "aria-labelledby": "participants" },
      h("h2", { id: "participants" }, "Members"),
      this.problem,
      this.waiting,
      this.list,
      this.terms,
      this.reasonsTitle,
      this.reasons,
    );
  }

  draw(summary: Summary, live: RunLive): void {
    say(this.waiting, waitingWords(summary, live));
    say(this.problem, live.problem ? `The view itself failed, and the run went on without it: ${sentence(live.problem)}` : "");
    this.problem.hidden = !live.problem;
    const members = live.members ?? [];
    fill(this.list, ...members.map((one) => memberView(one, live)));
    const spent = members.find((one) => one.spent !== null)?.spent;
    say(this.terms, spent ? termsWords(spent) : "");
    const reasons = newest(members);
    say(this.reasonsTitle, live.role === "member" ? "Your rounds without a report" : "Rounds without a report");
    this.reasonsTitle.hidden = this.reasons.hidden = !members.some((one) => one.reasons !== undefined);
    fill(this.reasons, ...(reasons.length === 0 ? [h("p", {}, "None so far.")] : reasons.map(reasonView)));
  }
}

function memberView(one: MemberActivity, live: RunLive): HTMLElement {
  const awaited = live.waiting?.members?.includes(one.name) ?? false;
  const kind = awaited ? "awaited" : one.present === false ? "gone" : one.present === true ? "here" : "";
  const { word, kind: grade } = strength(figure(one.spent?.epsilon ?? 0), one.spent?.adjacency, one.spent?.delta);
  const troubles = troubleWords(one);
  return h(
    "li",
    { class: kind, "data-member": one.number },
    h(
      "div",
      {},
      h("b", {}, one.own ? `${one.name} (you)` : one.name),
      presenceWords(one, awaited) !== "" && h("span", {}, presenceWords(one, awaited)),
      h("span", {}, reportWords(one)),
      troubles !== "" && h("span", { class: "wrong" }, troubles),
      one.spent !== null && h("span", {}, spentWords(one.spent), " ", h("span", { class: `badge ${grade}` }, word)),
    ),
  );
}

/** Whether a member is there; nothing where that is not shown. */
export function presenceWords({ present, why }: Pick<MemberActivity, "present" | "why">, awaited: boolean): string {
  if (present === undefined) return "";
  if (present === false) return why ? `away: ${why}` : "away";
  return awaited ? "its answer is still to come" : present === null ? "not heard of yet" : "here";
}

export function reportWords({ reports, last_round, asked }: Pick<MemberActivity, "reports" | "last_round" | "asked">): string {
  if (reports === 0) return asked ? `no report in ${counted(asked, "round")}` : "no report yet";
  const of = asked === undefined ? counted(reports, "report") : `${reports} of ${counted(asked, "report")}`;
  return `${of}, the last in round ${last_round}`;
}

export function troubleWords({ declined = 0, refused = 0, missing = 0, late = 0 }: Pick<MemberActivity, "declined" | "refused" | "missing" | "late">): string {
  const counts = [[declined, "declined"], [missing, "missing"], [refused, "refused"], [late, "late"]] as const;
  return counts.filter(([number]) => number > 0).map(([number, what]) => `${what} ${number}`).join(", ");
}

export function spentWords(spent: Spent): string {
  return `epsilon ${epsilon(figure(spent.epsilon))} spent`;
}

/** What all these epsilons are about. */
export function termsWords({ adjacency, adversary, delta: slack }: Spent): string {
  return (
    `Spent is the proven epsilon of all that has left a member so far: for ${change(adjacency, "theirs")}, seen by ` +
    `${onlooker(adversary, "theirs")}, at delta ${delta(slack)}. It follows from what was released. What a member's own ` +
    "record has counted, and which limit it has set, only the member knows."
  );
}

/** What the run waits for now, and who is shown. */
export function waitingWords(summary: Pick<Summary, "state" | "clients">, { role, waiting, members }: Pick<RunLive, "role" | "waiting" | "members">): string {
  const who = members === null ? `${counted(summary.clients, "member")} take part; a reader is not shown who they are. ` : "";
  if (over(summary) || waiting === null || waiting.answers === 0) return who.trim();
  const what = waiting.round === 0 ? "The preparation" : `Round ${waiting.round}`;
  const whom = waiting.members && waiting.members.length <= 10 ? listed(waiting.members) : counted(waiting.answers, "answer");
  return `${who}${what} waits for ${role === "operator" ? whom : counted(waiting.answers, "answer")}.`;
}

/** Why reports did not come, the newest first. */
export function newest(members: readonly MemberActivity[]): [string, MemberReason][] {
  const all = members.flatMap((one) => (one.reasons ?? []).map((reason): [string, MemberReason] => [one.name, reason]));
  return all.sort(([, a], [, b]) => b.last - a.last || b.first - a.first).slice(0, REASONS);
}

export function reasonWords({ first, last, what }: MemberReason): string {
  const when = last === 0 ? "before the first round" : first === last ? `round ${last}` : `rounds ${first} to ${last}`;
  return `${when}, ${what === "missing" ? "no answer" : what}`;
}

function reasonView([name, reason]: [string, MemberReason]): Child {
  const kind = reason.what === "refused" ? "note bad" : "note warn";
  const told = `${name}, ${reasonWords(reason)}`;
  return h("p", { class: kind }, h("b", {}, reason.reason === "" ? `${told}.` : `${told}: `), reason.reason);
}
