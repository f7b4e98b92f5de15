/**
 * The page's durable memory: identity, ledger and outbox, in IndexedDB.
 *
 * A release and the bytes of its report are written in one transaction, on disk before anything is sent. After a crash or
 * a reload the same bytes go again, never a fresh draw. Every entry carries a hash over itself and all before it.
 */
import { canonical, hex } from "../wire/frames.ts";
import { Refused } from "../wire/refusal.ts";
import type { OwnRelease } from "./account.ts";
import type { Budget } from "./terms.ts";

/** One line of the ledger, with the bytes of the last report of each federation. */
export interface Entry {
  index: number;
  /** whose figures add up: everything of one's own, or a federation's public sample */
  dataset: string;
  federation: string;
  round: number;
  /** SHA-256 of the plan's bytes */
  plan: string;
  releases: OwnRelease[];
  /** bytes of the answer; those of earlier rounds are not kept */
  answer: Uint8Array<ArrayBuffer> | null;
  /** SHA-256 of the answer's bytes, which stands for them when they are gone */
  hash: string;
  bytes: number;
  time: number;
  sent: "kept" | "sent" | "received";
  head: string;
}

/** What a page keeps of a federation beside its ledger. */
export interface Kept {
  /** the number of records that was announced */
  announced: number | null;
  /** the order in which records are taken up */
  order: Int32Array | null;
}

/** By which key plans are signed: the first one, and the rotations since, in hexadecimal. */
export interface Coordinator {
  first: string;
  rotations: string[];
  /** digest of the terms that were agreed to; agreements of an earlier page have none */
  terms?: string;
}

/** 2: entries have the hash of their answer */
const VERSION = 2;
const FIRST_HEAD = "0".repeat(64);

export class Ledger {
  readonly #db: IDBDatabase;

  private constructor(db: IDBDatabase) {
    this.#db = db;
  }

  static async open(name = "sordino"): Promise<Ledger> {
    if (typeof indexedDB === "undefined") throw noStorage();
    const request = indexedDB.open(name, VERSION);
    request.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion > 0) return; // `#addHashes` does the rest: no hash can be waited for in here
      request.result.createObjectStore("own");
      request.result.createObjectStore("kept");
      const entries = request.result.createObjectStore("entries", { keyPath: "index" });
      entries.createIndex("round", ["federation", "round"], { unique: true });
    };
    const db = await done(request).catch(() => {
      throw noStorage();
    });
    db.onversionchange = () => db.close();
    const ledger = new Ledger(db);
    await ledger.#addHashes();
    return ledger;
  }

  /** Makes entries of version 1 such as those of today, all at once or not at all. */
  async #addHashes(): Promise<void> {
    const before = await this.entries();
    if (!before.length || !withoutHashes(before)) return;
    const after = await hashed(before);
    const transaction = this.#write(["entries"]);
    const store = transaction.objectStore("entries");
    // Another tab may have done it since, and gone on.
    if (withoutHashes(await done(store.getAll() as IDBRequest<Entry[]>))) for (const entry of after) store.put(entry);
    await committed(transaction);
  }

  close(): void {
    this.#db.close();
  }

  /** The secret that makes this browser the same participant tomorrow; it never leaves. */
  async secret(): Promise<Uint8Array<ArrayBuffer>> {
    const transaction = this.#write(["own"]);
    const store = transaction.objectStore("own");
    let secret = (await done(store.get("secret"))) as Uint8Array<ArrayBuffer> | undefined;
    if (!secret) {
      secret = crypto.getRandomValues(new Uint8Array(32));
      store.put(secret, "secret");
    }
    await committed(transaction);
    return secret;
  }

  /** By which key plans are signed in a federation, with its rotations; null where nothing was agreed to. */
  async coordinator(federation: string): Promise<Coordinator | null> {
    const found = done(this.#db.transaction("own").objectStore("own").get(`coordinator of ${federation}`));
    return ((await found) as Coordinator | undefined) ?? null;
  }

  async keepCoordinator(federation: string, coordinator: Coordinator): Promise<void> {
    const transaction = this.#write(["own"]);
    transaction.objectStore("own").put(coordinator, `coordinator of ${federation}`);
    await committed(transaction);
  }

  /** The budget of the first agreement with a federation: its figures stay in these terms; null where none was agreed to. */
  async firstBudget(federation: string): Promise<Budget | null> {
    const found = done(this.#db.transaction("own").objectStore("own").get(`budget of ${federation}`));
    return ((await found) as Budget | undefined) ?? null;
  }

  /** Keeps a budget as a federation's first one; a later one changes nothing. */
  async keepFirstBudget(federation: string, budget: Budget): Promise<void> {
    if (await this.firstBudget(federation)) return;
    const transaction = this.#write(["own"]);
    transaction.objectStore("own").put(budget, `budget of ${federation}`);
    await committed(transaction);
  }

  async entries(): Promise<Entry[]> {
    return done(this.#db.transaction("entries").objectStore("entries").getAll() as IDBRequest<Entry[]>);
  }

  /** The entry for a federation's round, if there is one. */
  async find(federation: string, round: number): Promise<Entry | null> {
    const index = this.#db.transaction("entries").objectStore("entries").index("round");
    return ((await done(index.get([federation, round]))) as Entry | undefined) ?? null;
  }

  async last(federation: string): Promise<Entry | null> {
    const own = (await this.entries()).filter((entry) => entry.federation === federation);
    return own.reduce<Entry | null>((last, entry) => (last === null || entry.round > last.round ? entry : last), null);
  }

  async kept(federation: string): Promise<Kept> {
    const found = await done(this.#db.transaction("kept").objectStore("kept").get(federation) as IDBRequest<Kept | undefined>);
    return found ?? { announced: null, order: null };
  }

  /** Writes a release with its bytes down; once this is done, and not before, they may be sent. */
  async record(given: Omit<Entry, "index" | "head" | "hash" | "bytes" | "sent"> & { answer: Uint8Array<ArrayBuffer> }, kept: Kept): Promise<Entry> {
    const before = (await this.entries()).at(-1) ?? null;
    const entry: Entry = {
      ...given, index: before === null ? 0 : before.index + 1, hash: await sha256(given.answer), bytes: given.answer.length,
      sent: "kept", head: "",
    };
    entry.head = await headOf(before?.head ?? FIRST_HEAD, entry);
    const transaction = this.#write(["entries", "kept"]);
    const store = transaction.objectStore("entries");
    store.add(entry); // fails, and with it everything, if this index or this round was written by someone else meanwhile
    transaction.objectStore("kept").put(kept, entry.federation);
    const all = await done(store.getAll() as IDBRequest<Entry[]>).catch(() => {
      throw notWritten(transaction.error);
    });
    for (const earlier of all.filter((e) => e.federation === entry.federation)) {
      if (earlier.round < entry.round && earlier.answer !== null) store.put({ ...earlier, answer: null });
    }
    await committed(transaction);
    return entry;
  }

  /** Notes how far an entry's bytes have come. */
  async mark(index: number, sent: "sent" | "received"): Promise<void> {
    const transaction = this.#write(["entries"]);
    const store = transaction.objectStore("entries");
    const entry = (await done(store.get(index))) as Entry | undefined;
    if (entry && entry.sent !== "received") store.put({ ...entry, sent });
    await committed(transaction);
  }

  /** Whether every head is that of its entries, and every answer that is still here the one that was written down. */
  async sound(): Promise<boolean> {
    let head = FIRST_HEAD;
    for (const [i, entry] of (await this.entries()).entries()) {
      if (entry.index !== i || entry.head !== (await headOf(head, entry))) return false;
      if (entry.answer !== null && entry.hash !== (await sha256(entry.answer))) return false;
      head = entry.head;
    }
    return true;
  }

  #write(stores: string[]): IDBTransaction {
    return this.#db.transaction(stores, "readwrite", { durability: "strict" });
  }
}

async function headOf(before: string, { index, dataset, federation, round, plan, releases, time, hash }: Entry): Promise<string> {
  const line = [before, index, dataset, federation, round, plan, releases, time, hash];
  return sha256(new TextEncoder().encode(canonical(JSON.parse(JSON.stringify(line)))));
}

async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
}

// --- ledgers of version 1

function withoutHashes(entries: Entry[]): boolean {
  return entries.every(({ hash }) => hash === undefined);
}

/**
 * Entries of version 1 with hashes. Of an answer that is gone no hash was kept; but the entry's head was over it, and stands
 * for it from now on, in a new chain. What does not fit together as it is keeps its heads, and is found out by them.
 */
async function hashed(entries: Entry[]): Promise<Entry[]> {
  const after: Entry[] = [];
  let [old, head] = [FIRST_HEAD, FIRST_HEAD];
  let fits = true;
  for (const [i, entry] of entries.entries()) {
    const hash = entry.answer === null ? entry.head : await sha256(entry.answer);
    fits &&= entry.index === i && (entry.answer === null || entry.head === (await headOf(old, { ...entry, hash })));
    old = entry.head;
    head = fits ? await headOf(head, { ...entry, hash }) : entry.head;
    after.push({ ...entry, hash, head });
  }
  return after;
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function committed(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(notWritten(transaction.error));
    transaction.onerror = () => reject(notWritten(transaction.error));
  });
}

function notWritten(error: DOMException | null): Refused {
  const full = error?.name === "QuotaExceededError";
  return new Refused(
    full
      ? "the browser has no room left for the page's ledger, so nothing was sent: free some storage and reload the page"
      : `the page's ledger could not be written (${error?.name ?? "unknown"}), so nothing was sent: reload the page`,
  );
}

function noStorage(): Refused {
  return new Refused(
    "this browser lets the page store nothing, so no ledger can be kept and nothing is sent: allow site data, or leave " +
      "private browsing",
  );
}
