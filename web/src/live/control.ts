/** What the operator may do: begin the first round, begin a federation anew, go on with it, and hand out its link. */

import { beginAgain, newLink, startNow, type Shown, type Summary } from "../ui/api.ts";
import { fill, h, say } from "../ui/dom.ts";
import { over, sentence } from "../ui/front.ts";
import { qrView } from "../ui/qr.ts";
import { wordsOf } from "../wire/refusal.ts";

/** What the operator can do now, and what is said beside it. */
export interface Steps {
  /** begin the first round; "not yet" while too few are here */
  start: "no" | "not yet" | "yes";
  again: boolean;
  /** go on from the model */
  goOn: boolean;
  words: string;
}

/** What may be done with a federation, by whoever is at the server's own machine. */
export function steps(summary: Summary, { may_free, task }: Pick<Shown, "may_free" | "task">): Steps {
  const none: Steps = { start: "no", again: false, goOn: false, words: "" };
  if (!may_free) return none;
  if (over(summary)) {
    const goOn = summary.state === "finished" && task?.training.kind !== "sums";
    return { ...none, again: true, goOn, words: "To begin again, everybody joins anew, under the same link. The model and the report of this one are kept." };
  }
  if (summary.state !== "waiting" || summary.round > 0) return none;
  return { ...none, start: typeof summary.starts_in === "number" ? "yes" : "not yet" };
}

/** The operator's buttons. */
export class Control {
  readonly element: HTMLElement;
  private readonly detail: Shown;
  private readonly words = h("p", { class: "quiet" });
  private readonly problem = h("div", { role: "alert" });
  private readonly start = h("button", { type: "button", class: "main", onclick: () => this.act(() => startNow(this.detail.name)) }, "Start now");
  private readonly again = h(
    "button",
    { type: "button", onclick: () => this.act(() => beginAgain(this.detail.name, { rounds: null, from_model: false })) },
    "Begin again",
  );
  private readonly rounds = h("input", { type: "number", id: "more-rounds", min: 1, max: 1000, step: 1, class: "short" });
  private readonly goOn = h(
    "p",
    { class: "row" },
    h("label", { for: "more-rounds" }, "Go on with"),
    this.rounds,
    h("span", {}, "more rounds"),
    h("button", { type: "button", onclick: () => this.goOnFromModel() }, "Go on"),
  );

  constructor(detail: Shown) {
    this.detail = detail;
    this.rounds.value = String(detail.rounds);
    this.element = h("div", { class: "control stack" }, this.words, h("p", { class: "row" }, this.start, this.again), this.goOn, this.problem);
    this.draw(detail);
  }

  draw(summary: Summary): void {
    const { start, again, goOn, words } = steps(summary, this.detail);
    this.start.hidden = start === "no";
    this.start.disabled = start === "not yet";
    this.again.hidden = !again;
    this.goOn.hidden = !goOn;
    this.element.hidden = start === "no" && !again;
    say(this.words, words);
  }

  private goOnFromModel(): void {
    if (!this.rounds.reportValidity()) return;
    this.act(() => beginAgain(this.detail.name, { rounds: Number(this.rounds.value), from_model: true }));
  }

  private act(what: () => Promise<void>): void {
    fill(this.problem);
    what().catch((problem: unknown) => fill(this.problem, h("p", { class: "note bad" }, sentence(wordsOf(problem)))));
  }
}

/** Where the link leads that the operator may hand on; null where each place has a link of its own. */
export function invitation(detail: Shown, changed: (link: string) => void): HTMLElement | null {
  const { link, shared_link } = detail;
  if (!link) return null;
  const local = /^https?:\/\/(localhost|127\.0\.0\.1|\[::1\])[:/]/.test(link);
  const problem = h("div", { role: "alert" });
  const renew = (): void => {
    newLink(detail.name).then(changed, (error: unknown) => fill(problem, h("p", { class: "note bad" }, sentence(wordsOf(error)))));
  };
  return h(
    "section",
    { class: "card", "aria-labelledby": "invite" },
    h("h2", { id: "invite" }, "Invite"),
    h("p", {}, shared_link ? "Everybody who has this link can take part." : "Everybody can take part, at this address."),
    h("p", {}, h("code", { class: "link" }, link)),
    local
      ? h("p", { class: "note warn" }, "Only this computer can open it. Others need HTTPS: docs/serve.md says how.")
      : qrView(link),
    h(
      "p",
      { class: "row" },
      "clipboard" in navigator && copyButton(link),
      shared_link && askingButton("Make a new link…", "This link will admit nobody any more. Make a new one?", renew),
    ),
    problem,
  );
}

/** A quiet button that asks at the first press, and acts at the second. */
function askingButton(label: string, question: string, act: () => void): HTMLElement {
  let asked = false;
  const press = (): void => {
    if (asked) return act();
    asked = true;
    say(button, question);
  };
  const button = h("button", { type: "button", class: "plain", "aria-live": "polite", onclick: press }, label);
  return button;
}

function copyButton(link: string): HTMLElement {
  const copy = (): void => void navigator.clipboard.writeText(link).then(() => say(button, "Copied"));
  const button = h("button", { type: "button", "aria-live": "polite", onclick: copy }, "Copy the link");
  return button;
}
