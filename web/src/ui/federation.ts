/** One federation before taking part: what it is, the examples, the protection, and the agreement. */

import type { Choice, DataSource } from "../session/session.ts";
import { AccountsView } from "./account.ts";
import type { Detail } from "./api.ts";
import { DataChoice } from "./data_choice.ts";
import { facts, h, say } from "./dom.ts";
import { absenceWords, full, fullWords, leavesView, sentence, stateBadges, stateWords } from "./front.ts";
import { Protection } from "./protection.ts";
import { statementView, trustView, type Build } from "./statement_view.ts";
import { counted, titled } from "./words.ts";

export interface Begin {
  data: DataSource;
  choice: Choice;
  token: string;
}

interface Setting {
  build: Build | null;
  token: string;
  /** whether this browser can take part at all */
  able: boolean;
  begin: (what: Begin) => void;
}

export function federationView(detail: Detail, setting: Setting): HTMLElement {
  const over = detail.state === "finished" || detail.state === "failed";
  const accounts = new AccountsView(detail.statement);
  return h(
    "div",
    {},
    h("p", {}, h("a", { href: "#/" }, "All federations")),
    h("h1", {}, titled(detail.title)),
    h(
      "p",
      { class: "lead" },
      "Several participants train one model together. Each learns from their own examples, on their own device, and shares only a noisy summary.",
    ),
    h(
      "section",
      { class: "card", "aria-labelledby": "about" },
      h("h2", { id: "about" }, "What this is"),
      facts("facts", [
        ["Its makers say", sentence(detail.summary)],
        ["Run by", detail.operator || "the server does not say"],
        ["State", h("span", { class: "row" }, ...stateBadges(detail), h("span", {}, stateWords(detail)))],
        [
          "Goal",
          `one small model (${detail.task.model.size.toLocaleString("en-GB")} numbers) that tells apart ${counted(detail.task.classes.length, "kind")}: ${classWords(detail.task.classes)}`,
        ],
        [
          "Takes",
          `${counted(detail.rounds, "round")}; up to ${counted(detail.clients, "participant")}. Keep the page open; you can pause or leave at any time`,
        ],
        ["From the paper", detail.task.paper ?? null],
      ]),
      leavesView(detail.task),
    ),
    ...(over ? [overView(detail)] : [joinSteps(detail, setting, accounts)]),
    statementCard(detail, setting.build, accounts),
  );
}

function classWords(classes: readonly string[]): string {
  return classes.length <= 12
    ? classes.join(", ")
    : `${classes.slice(0, 10).join(", ")} and ${classes.length - 10} more`;
}

function overView(detail: Detail): HTMLElement {
  return h(
    "section",
    { class: "card", "aria-labelledby": "over" },
    h("h2", { id: "over" }, "This federation is over"),
    h("p", {}, sentence(detail.why || "there is nothing left to take part in")),
    h(
      "p",
      {},
      h("a", { href: `/live#/${encodeURIComponent(detail.name)}` }, "See what came out of it, and download the model"),
    ),
  );
}

export function statementCard(detail: Detail, build: Build | null, accounts: AccountsView): HTMLElement {
  return h(
    "section",
    { class: "card", "aria-labelledby": "statement" },
    h("h2", { id: "statement" }, "Privacy statement"),
    accounts.element,
    statementView(detail.statement, "yours"),
    h("h3", { class: "trust-title" }, "Whom you have to trust"),
    trustView(build, detail.operator),
  );
}

function joinSteps(detail: Detail, setting: Setting, accounts: AccountsView): HTMLElement {
  const why = h("p", { class: "small quiet", id: "why-not", role: "status" });
  const agree = h("input", { type: "checkbox", id: "agree", onchange: () => refresh() });
  const token = h("input", {
    type: "text",
    id: "token",
    autocomplete: "off",
    spellcheck: "false",
    value: setting.token,
    onchange: () => refresh(),
  });
  const button = h("button", { type: "submit", class: "main", "aria-describedby": "why-not" }, "Start taking part");
  const missing = (): string => {
    if (!setting.able) return "This browser cannot take part; the top of the page says why.";
    if (data.data === null) return "Choose examples first.";
    if (protection.choice === null) return "Tick the box under “Your protection” first, or do not take part.";
    if (detail.by_invitation && token.value.trim() === "") return "Enter your invitation first.";
    return agree.checked ? "" : "Tick the box first.";
  };
  const refresh = (): void => {
    const text = missing();
    button.setAttribute("aria-disabled", String(text !== ""));
    say(why, text);
  };
  let data: DataChoice;
  let protection: Protection;
  const later = (): void => queueMicrotask(refresh);
  const own = (): boolean => data.data?.kind !== "sample";
  data = new DataChoice(detail.task, detail.sample, () => {
    later();
    queueMicrotask(() => protection.recount());
  });
  protection = new Protection(detail.task, detail.history, own, later, (budget) => accounts.tell(budget));
  const submit = (event: Event): void => {
    event.preventDefault();
    refresh();
    const { choice } = protection;
    if (missing() !== "" || data.data === null || choice === null) return;
    setting.begin({ data: data.data, choice, token: token.value.trim() });
  };
  later();
  return h(
    "form",
    { class: "steps", onsubmit: submit, autocomplete: "off" },
    h(
      "section",
      { class: "card step", "aria-labelledby": "step-data" },
      h("h2", { id: "step-data" }, "Your examples"),
      data.element,
    ),
    h(
      "section",
      { class: "card step", "aria-labelledby": "step-protection" },
      h("h2", { id: "step-protection" }, "Your protection"),
      protection.element,
    ),
    h(
      "section",
      { class: "card step stack", "aria-labelledby": "step-start" },
      h("h2", { id: "step-start" }, "Start"),
      detail.by_invitation &&
        h(
          "div",
          { class: "field" },
          h("label", { for: "token" }, "Your invitation"),
          h("span", { class: "hint" }, "This server asks for one. It came with the link, or from whoever invited you."),
          token,
        ),
      h(
        "label",
        { class: "check" },
        agree,
        h("span", {}, "I have seen what leaves this page and what stays, and I may use these examples for this."),
      ),
      full(detail)
        ? h("p", { class: "note warn" }, fullWords(detail))
        : h("p", { class: "small quiet" }, absenceWords(detail)),
      h("div", { class: "row" }, button, why),
    ),
  );
}
