/** How many lines the ledger has, in a store of its own: a browser that clears the ledger to save space may leave it, and then it tells. */
import { Refused } from "../wire/refusal.ts";
import { localStore } from "./farewell.ts";

const KEY = "sordino:ledger lines";

export class Marker {
  readonly #store: Pick<Storage, "getItem" | "setItem"> | null;

  constructor(store: Pick<Storage, "getItem" | "setItem"> | null = localStore()) {
    this.#store = store;
  }

  /** Notes that the ledger has so many lines, before any of them is sent. */
  note(lines: number): void {
    try {
      this.#store?.setItem(KEY, String(lines));
    } catch {
      // A browser without room for it takes part all the same: the ledger itself was written.
    }
  }

  /** Refuses a ledger that has fewer lines than it had. */
  check(lines: number): void {
    const known = Number(this.#store?.getItem(KEY) ?? 0);
    if (!(known > lines)) return;
    throw new Refused(
      `this browser's record had ${known} reports, and ${lines === 0 ? "is gone" : `has ${lines} now`}: the browser has cleared it, so what was spent is not known and ` +
        "nothing is sent. Clear this site's data if you want to begin anew, as somebody else",
    );
  }
}
