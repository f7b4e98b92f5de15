/**
 * Places that were left without the server hearing of it: they are kept here, and given back when it can be reached again,
 * from this page or the next one that is opened. Nothing else depends on it: what was spent is in the ledger.
 */
import { LOCK } from "../privacy/privacy.ts";

/** A place to give back: where, and the hello of whoever holds it. */
export interface Farewell {
  url: string;
  hello: Record<string, unknown>;
}

/** Carries out what must not happen while any tab takes part; false where one does. */
type Alone = (what: () => Promise<void>) => Promise<boolean>;

const KEY = "sordino:leaving";
/** milliseconds for one farewell: a page that begins to take part waits a little longer than that for the lock */
const LONGEST = 2_000;
/** Refusals that may pass. After any other there is no place that could be given back. */
const LATER = ["busy", "slow", "rate", "size"];

export class Farewells {
  readonly #store: Pick<Storage, "getItem" | "setItem"> | null;
  readonly #socket: (url: string, protocols: string[]) => WebSocket;
  readonly #alone: Alone;
  #saying: Promise<void> | null = null;

  constructor(
    socket: (url: string, protocols: string[]) => WebSocket,
    store: Pick<Storage, "getItem" | "setItem"> | null = localStore(),
    alone: Alone = withoutOthers,
  ) {
    this.#socket = socket;
    this.#store = store;
    this.#alone = alone;
  }

  get kept(): Farewell[] {
    try {
      return JSON.parse(this.#store?.getItem(KEY) ?? "[]") as Farewell[];
    } catch {
      return [];
    }
  }

  keep(farewell: Farewell): void {
    this.#write([...this.kept.filter(({ url }) => url !== farewell.url), farewell]);
  }

  /** The server has heard it, or whoever left takes part again. */
  drop(url: string): void {
    this.#write(this.kept.filter((one) => one.url !== url));
  }

  /** Tells the server what it has not heard; what cannot be told now is kept for the next time. */
  say(): Promise<void> {
    this.#saying ??= this.#sayAll().finally(() => (this.#saying = null));
    return this.#saying;
  }

  async #sayAll(): Promise<void> {
    for (const farewell of this.kept) await this.#reached(farewell);
  }

  #reached({ url, hello }: Farewell): Promise<void> {
    const socket = this.#socket(url, ["sordino.2"]);
    let said = false;
    const closed = new Promise<void>((resolve) => {
      socket.onclose = ({ wasClean }) => {
        if (said && wasClean) this.drop(url); // the server closes when it has written it down
        resolve();
      };
    });
    socket.onmessage = ({ data }) => {
      const message = typeof data === "string" ? (JSON.parse(data) as Record<string, unknown>) : {};
      if (message["type"] === "refused" && !LATER.includes(String(message["code"]))) this.drop(url);
      if (message["type"] !== "welcome") return;
      socket.send(JSON.stringify({ type: "leave" }));
      said = true;
    };
    socket.onopen = async () => {
      const done = await this.#alone(async () => {
        if (!this.kept.some((one) => one.url === url)) return socket.close(); // whoever left has come back
        const end = setTimeout(() => socket.close(), LONGEST);
        socket.send(JSON.stringify(hello));
        await closed;
        return clearTimeout(end);
      });
      if (!done) socket.close();
    };
    return closed;
  }

  #write(kept: Farewell[]): void {
    try {
      this.#store?.setItem(KEY, JSON.stringify(kept));
    } catch {
      // A browser without room keeps the place as it is.
    }
  }
}

/** Says what is kept now, when the network is back, and now and then. */
export function sayWhenPossible(farewells: Farewells, everySeconds = 30): void {
  const say = (): void => void farewells.say();
  say();
  globalThis.addEventListener("online", say);
  setInterval(say, 1000 * everySeconds);
}

async function withoutOthers(what: () => Promise<void>): Promise<boolean> {
  return navigator.locks.request(LOCK, { ifAvailable: true }, async (lock) => {
    if (lock !== null) await what();
    return lock !== null;
  });
}

/** Browsers that keep nothing throw where others have the store. */
export function localStore(): Storage | null {
  try {
    return localStorage;
  } catch {
    return null;
  }
}
