/** One federation before taking part: a first sight, then the choice and the agreement; the long words fold away below. */

import type { Choice, DataSource } from "../session/session.ts";
import { AccountsView } from "./account.ts";
import type { Detail, Summary } from "./api.ts";
import { details, facts, h } from "./dom.ts";
import { FirstSight } from "./first_sight.ts";
import { leavesView, protectionWords, sentence } from "./front.ts";
import { joinForm } from "./join_form.ts";
import { LeakView } from "./leak_view.ts";
import { publicPictures } from "./sample_pictures.ts";
import { statementView, trustView, type Build } from "./statement_view.ts";
import { counted } from "./words.ts";

export interface Begin {
  data: DataSource;
  choice: Choice;
  token: string;
}

export interface Setting {
  build: Build | null;
  token: string;
  /** whether this browser can take part at all */
  able: boolean;
  /** whether there are other federations to choose from */
  several: boolean;
  /** what to say first to somebody who was here before; empty where there is nothing */
  welcome: string;
  begin: (what: Begin) => void;
}

/** The state of the history's entry in which somebody joins, so that going back goes to the first sight. */
const JOINING = "sordino:joining";

export class FederationView {
  readonly element: HTMLElement;
  private readonly first: FirstSight;
  private readonly form: HTMLElement;
  private readonly leak: LeakView | null;

  constructor(detail: Detail, setting: Setting) {
    const accounts = new AccountsView(detail.statement);
    const pictures = publicPictures(detail);
    this.first = new FirstSight(detail, setting.token !== "", setting.several, pictures);
    this.leak = LeakView.of(detail.task, pictures);
    this.form = joinForm(detail, setting, accounts, this.leak, () => history.back());
    this.form.hidden = true;
    this.first.button.addEventListener("click", () => {
      history.pushState(JOINING, "");
      this.turn("form");
    });
    this.element = h(
      "div",
      {},
      setting.welcome !== "" && h("p", { class: "note" }, setting.welcome),
      this.first.element,
      this.form,
      detailsOf(detail, setting.build, accounts),
    );
    if (history.state === JOINING) history.replaceState(null, ""); // after a reload, what was chosen is gone
  }

  /** Who is here by now. */
  tell(one: Summary): void {
    this.first.tell(one);
  }

  /** Ends what computes. */
  close(): void {
    this.leak?.close();
  }

  /** Shows the part that an entry of the history is about. */
  follow(state: unknown): void {
    this.turn(state === JOINING ? "form" : "first");
  }

  private turn(to: "first" | "form"): void {
    const form = to === "form";
    if (this.form.hidden !== form) return;
    this.form.hidden = !form;
    this.first.element.hidden = form;
    window.scrollTo(0, 0);
    (form ? this.form.querySelector<HTMLElement>("h1") : this.first.button)?.focus({ preventScroll: true });
  }
}

/** Everything that there is to know, one tap away. */
export function detailsOf(detail: Detail, build: Build | null, accounts: AccountsView): HTMLElement {
  return h(
    "section",
    { class: "more", "aria-label": "Details" },
    details("What leaves this page, and what stays", leavesView(detail.task)),
    details(
      "How well you are protected",
      h("p", {}, protectionWords(detail)),
      accounts.element,
      statementView(detail.statement, "yours"),
    ),
    details("Whom you have to trust", trustView(build, detail.operator)),
    details("About this federation", aboutView(detail)),
  );
}

export function aboutView(detail: Detail): HTMLElement {
  const { task } = detail;
  return facts("facts", [
    ["Its makers say", sentence(detail.summary)],
    ["Run by", detail.operator || "the server does not say"],
    [
      "Goal",
      `one small model (${counted(task.model.size, "number")}) that tells apart ${counted(task.classes.length, "kind")}: ${classWords(task.classes)}`,
    ],
    [
      "Takes",
      `${counted(detail.rounds, "round")}; up to ${counted(detail.clients, "participant")}. Keep the page open; you can pause or leave at any time`,
    ],
    ["From the paper", task.paper ?? null],
  ]);
}

function classWords(classes: readonly string[]): string {
  return classes.length <= 12
    ? classes.join(", ")
    : `${classes.slice(0, 10).join(", ")} and ${classes.length - 10} more`;
}

