/** That this tab takes part, so that a reload goes on. Never the examples: those are in memory only. */

import type { Choice } from "../session/session.ts";
import type { Begin } from "./federation.ts";

const KEY = "sordino:taking-part";

export interface Kept {
  federation: string;
  /** those that were agreed to: of a federation that began anew they are others, and a reload agrees to nothing */
  terms: string;
  data: "sample" | "own";
  choice: Choice;
  token: string;
}

export function remember(federation: string, terms: string, what: Begin): void {
  const kept: Kept = {
    federation,
    terms,
    data: what.data.kind === "sample" ? "sample" : "own",
    choice: what.choice,
    token: what.token,
  };
  try {
    store()?.setItem(KEY, JSON.stringify(kept));
  } catch {
    // A browser without room for it takes part all the same; after a reload one begins by hand.
  }
}

export function remembered(federation: string, terms: string): Kept | null {
  try {
    const kept = JSON.parse(store()?.getItem(KEY) ?? "null") as Kept | null;
    return kept !== null && kept.federation === federation && kept.terms === terms ? kept : null;
  } catch {
    return null;
  }
}

export function forget(): void {
  store()?.removeItem(KEY);
}

/** Milliseconds in which a page that is being reloaded is gone. */
const GONE = 2000;

/** Forgets, if this page is still there and `current` after a while: when it is reloaded its requests fail, and that ends nothing. */
export function forgetSoon(current: () => boolean): void {
  setTimeout(() => {
    if (current()) forget();
  }, GONE);
}

/** Browsers that keep nothing throw where others have the store. */
function store(): Storage | null {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}
