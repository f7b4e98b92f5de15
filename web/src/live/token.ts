/** The token that says who watches: from a link, behind its #, or from a form. It stays in this tab. */

import { h } from "../ui/dom.ts";
import { read } from "../ui/place.ts";

const KEPT = "sordino-live-token";

/** The token of the address, else the one that this tab has. Out of the address it goes at once, and out of the history. */
export function takeToken(place: Pick<Location, "hash" | "pathname">, past: Pick<History, "replaceState">, kept: Pick<Storage, "getItem" | "setItem">): string {
  const { name, token } = read(place.hash);
  if (token === "") return kept.getItem(KEPT) ?? "";
  kept.setItem(KEPT, token);
  past.replaceState(null, "", place.pathname + (name === "" ? "" : `#/${encodeURIComponent(name)}`));
  return token;
}

/** Asks for a token, where a link had none, or one that the server does not know. */
export function tokenForm(given: (token: string) => void): HTMLElement {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const enter = (event: Event): void => {
    event.preventDefault();
    const token = field.value.trim();
    if (token === "") return;
    sessionStorage.setItem(KEPT, token);
    given(token);
  };
  return h(
    "div",
    { class: "card" },
    h("h1", {}, "This view needs a token"),
    h("p", {}, "Whoever runs the federation has given you a link with a token in it, or keeps the file of tokens. Open the link again, or enter the token."),
    h("form", { class: "row", onsubmit: enter }, h("label", { for: "token" }, "Token"), field, h("button", { class: "main" }, "Watch")),
  );
}
