/** The second screen: which examples, how much protection, the agreement, and the start. */

import type { AccountsView } from "./account.ts";
import type { Detail, Task } from "./api.ts";
import { DataChoice } from "./data_choice.ts";
import { h, say } from "./dom.ts";
import { absenceWords, full, fullWords } from "./front.ts";
import type { Setting } from "./federation.ts";
import type { LeakView } from "./leak_view.ts";
import { Protection } from "./protection.ts";
import { counted, titled } from "./words.ts";

export function joinForm(detail: Detail, setting: Setting, accounts: AccountsView, leak: LeakView | null, back: () => void): HTMLElement {
  const why = h("p", { class: "small why-not", id: "why-not", role: "status", tabindex: -1 });
  const agree = h("input", { type: "checkbox", id: "agree", onchange: () => refresh() });
  const token = h("input", {
    type: "text",
    id: "token",
    autocomplete: "off",
    spellcheck: "false",
    value: setting.token,
    onchange: () => refresh(),
  });
  const button = h("button", { type: "submit", class: "main large", "aria-describedby": "why-not" }, "Start taking part");
  const missing = (): string => {
    if (!setting.able) return "This browser cannot take part; the top of the page says why.";
    if (data.data === null) return "Choose examples first.";
    if (protection.choice === null) return "Tick the box under “Your protection” first, or do not take part.";
    if (protection.shortfall !== "") return protection.shortfall;
    if (detail.by_invitation && token.value.trim() === "") return "Enter your invitation first.";
    return agree.checked ? "" : "Tick the box above first.";
  };
  const refresh = (): void => {
    const text = missing();
    button.setAttribute("aria-disabled", String(text !== ""));
    say(why, text);
    if (text === "") why.classList.remove("asked");
    leak?.follow(protection.reports);
  };
  const invited = setting.token !== "";
  let data: DataChoice;
  let protection: Protection;
  const later = (): void => queueMicrotask(refresh);
  data = new DataChoice(detail.task, detail.sample, () => {
    later();
    queueMicrotask(() => protection.recount());
  });
  const own = (): boolean => data.data?.kind !== "sample";
  protection = new Protection(detail, own, later, (budget) => accounts.tell(budget));
  const submit = (event: Event): void => {
    event.preventDefault();
    refresh();
    const { choice } = protection;
    if (missing() !== "" || data.data === null || choice === null) {
      why.classList.add("asked"); // else a press on the button would seem to do nothing
      return (protection.consent ?? (agree.checked ? why : agree)).focus();
    }
    setting.begin({ data: data.data, choice, token: token.value.trim() });
  };
  later();
  return h(
    "form",
    { class: "steps", onsubmit: submit, autocomplete: "off" },
    h("p", { class: "small" }, h("button", { type: "button", class: "plain back", onclick: back }, "‹ Back")),
    h("h1", { tabindex: -1 }, `Join ${titled(detail.title)}`),
    h(
      "section",
      { class: "step", "aria-labelledby": "step-data" },
      h("h2", { id: "step-data" }, "Your examples"),
      data.element,
    ),
    h(
      "section",
      { class: "step", "aria-labelledby": "step-protection" },
      h("h2", { id: "step-protection" }, "Your protection"),
      protection.element,
      leak?.element,
    ),
    h(
      "section",
      { class: "step stack", "aria-labelledby": "step-start" },
      h("h2", { id: "step-start" }, "Your consent"),
      h("p", { class: "small" }, leavesLine(detail.task)),
      detail.by_invitation && !invited && invitation(token),
      h(
        "label",
        { class: "check" },
        agree,
        h("span", {}, "I have seen what leaves this page and what stays, and I may use these examples for this."),
      ),
      h("div", { class: "start" }, button, why),
      full(detail)
        ? h("p", { class: "note warn" }, fullWords(detail))
        : h("p", { class: "small quiet" }, absenceWords(detail)),
      detail.by_invitation && !detail.shared_link && invited && h("details", { class: "small quiet" }, h("summary", {}, "You were invited by your link"), invitation(token)),
    ),
  );
}

function invitation(token: HTMLInputElement): HTMLElement {
  return h(
    "div",
    { class: "field" },
    h("label", { for: "token" }, "Your invitation"),
    h("span", { class: "hint" }, "It came with the link, or from whoever invited you."),
    token,
  );
}

/** What leaves and what stays, in one line each; the details say it in full. */
export function leavesLine(task: Task): string {
  const noisy = task.training.kind !== "plain" || (task.strengths[0]?.mechanism.name ?? "none") !== "none";
  return `Your examples stay in this page. In each round ${counted(task.upload.values, "number")} leave, ${noisy ? "with noise added on this device" : "with no noise at all"}; more under “What leaves this page”.`;
}
