/** Says that something did not work, and why. */

import { wordsOf } from "../wire/refusal.ts";
import { type Child, h } from "./dom.ts";
import { sentence } from "./front.ts";

/** A card in place of a view; `ways` are what can be done about it. */
export function trouble(problem: unknown, ...ways: Child[]): HTMLElement {
  return h("div", { class: "card", role: "alert" }, h("h1", {}, "That did not work"), h("p", {}, sentence(wordsOf(problem))), ...ways);
}

export function tryAgain(again: () => void): HTMLElement {
  return h("button", { type: "button", class: "main", onclick: again }, "Try again");
}
