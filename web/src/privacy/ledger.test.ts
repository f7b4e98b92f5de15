import "fake-indexeddb/auto";
import { beforeEach, describe, expect, test, vi } from "vitest";
import { Ledger } from "./ledger.ts";

let name = "";
let count = 0;
beforeEach(() => (name = `ledger ${(count += 1)}`));

const loss = { type: "Pure", epsilon: 0.5, count: 1 } as const;
const given = (federation: string, round: number) => ({
  dataset: "own", federation, round, plan: `${round}`.repeat(64), time: 1000 * round, answer: Uint8Array.of(round, 2, 3),
  releases: [{ what: "update", claimed: null, guarantees: [{ adversary: "server", adjacency: "client", loss }] }],
});
const kept = { announced: 7, order: Int32Array.of(2, 0, 1) };
const rounds = [["a", 1], ["b", 1], ["a", 2], ["a", 3]] as const;

async function written(): Promise<Ledger> {
  const ledger = await Ledger.open(name);
  for (const [federation, round] of rounds) await ledger.record(given(federation, round), kept);
  return ledger;
}

const opened = (request: IDBOpenDBRequest): Promise<IDBDatabase> =>
  new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));

/** Changes what lies in the browser, as somebody with its tools could. */
async function change(index: number, how: (entry: any) => void): Promise<void> {
  const db = await opened(indexedDB.open(name));
  const transaction = db.transaction("entries", "readwrite");
  const store = transaction.objectStore("entries");
  store.get(index).onsuccess = ({ target }) => {
    const entry = (target as IDBRequest).result;
    how(entry);
    store.put(entry);
  };
  await new Promise((resolve) => (transaction.oncomplete = resolve));
  db.close();
}

/** The heads that version 1 gave these rounds; it kept the bytes of each federation's last answer, and no hashes. */
const HEADS = [
  "df717bb9a923c3a57ddcd2bc47429d493863f0334bb4dc917e58ad462a1616cc",
  "fe7d3dc4ec2c0dcffd739264767482bb8c2ec7e191d95fce42265caaf133a003",
  "2058389a80b036c87682c028ff7c0d9209986811f68953ad1e2a8ffe0aaf0992",
  "bed5f0ff78ee63497e01ff4b01a70316fa0aaa9d92402c798822fa995724df64",
];
const SECRET = Uint8Array.from({ length: 32 }, (_, i) => i);
const FIRST = rounds.map(([federation, round], index) => {
  const line = given(federation, round);
  const answer = [1, 3].includes(index) ? line.answer : null;
  return { ...line, answer, index, bytes: 3, sent: index ? "kept" : "received", head: HEADS[index] };
});

async function writtenByVersion1(entries: object[]): Promise<void> {
  const request = indexedDB.open(name, 1);
  request.onupgradeneeded = () => {
    const db = request.result;
    db.createObjectStore("own").put(SECRET, "secret");
    db.createObjectStore("kept").put(kept, "a");
    const store = db.createObjectStore("entries", { keyPath: "index" });
    store.createIndex("round", ["federation", "round"], { unique: true });
    for (const entry of entries) store.put(entry);
  };
  (await opened(request)).close();
}

describe("a ledger that was changed by hand", () => {
  test.each([
    ["what left, in an entry whose bytes are gone", 0, (entry: any) => (entry.releases[0].guarantees[0].loss.epsilon = 0.1)],
    ["a round", 2, (entry: any) => (entry.round = 9)],
    ["the data set that is counted", 0, (entry: any) => (entry.dataset = "sample of a")],
    ["the hash of bytes that are gone", 0, (entry: any) => (entry.hash = "0".repeat(64))],
    ["no hash", 2, (entry: any) => delete entry.hash],
    ["bytes that are sent again", 3, (entry: any) => (entry.answer = Uint8Array.of(9, 9, 9))],
  ])("is found out: %s", async (_, index, how) => {
    const ledger = await written();
    expect(await ledger.sound()).toBe(true);
    await change(index, how);
    expect(await ledger.sound()).toBe(false);
    ledger.close();
    expect(await (await Ledger.open(name)).sound()).toBe(false);
  });
});

describe("a ledger of version 1", () => {
  test("opens with everything that was in it, and goes on", async () => {
    await writtenByVersion1(FIRST);
    const ledger = await Ledger.open(name);
    const entries = await ledger.entries();
    expect(entries).toEqual(FIRST.map((entry) => ({ ...entry, hash: expect.any(String), head: expect.any(String) })));
    expect(entries[0]!.hash).toBe(HEADS[0]); // the bytes are gone, and this was over them
    expect(await ledger.secret()).toEqual(SECRET);
    expect(await ledger.kept("a")).toEqual(kept);
    expect(await ledger.sound()).toBe(true);
    await ledger.record(given("a", 4), kept);
    ledger.close();
    const again = await Ledger.open(name);
    expect((await again.entries()).slice(0, 3)).toEqual(entries.slice(0, 3));
    expect(await again.entries()).toHaveLength(5);
    expect((await again.find("a", 4))!.answer).toEqual(Uint8Array.of(4, 2, 3));
    expect(await again.sound()).toBe(true);
  });

  test("keeps its heads where all bytes are still there", async () => {
    await writtenByVersion1(FIRST.map((entry) => ({ ...entry, answer: Uint8Array.of(entry.round, 2, 3) })));
    const ledger = await Ledger.open(name);
    expect((await ledger.entries()).map(({ head }) => head)).toEqual(HEADS);
    expect(await ledger.sound()).toBe(true);
  });

  test("that two tabs open at once is made anew once, and nothing written since is touched", async () => {
    await writtenByVersion1(FIRST);
    let go = () => {};
    const held = new Promise<void>((resolve) => (go = resolve));
    const { digest } = crypto.subtle;
    const slow = vi.spyOn(SubtleCrypto.prototype, "digest");
    slow.mockImplementationOnce(async (...data) => held.then(() => digest.call(crypto.subtle, ...data)));
    const first = Ledger.open(name); // reads the entries of version 1, and comes to its first hash no further
    await vi.waitFor(() => expect(slow).toHaveBeenCalled(), { timeout: 15_000 });
    const two = await Ledger.open(name);
    await two.record(given("a", 4), kept);
    await two.mark(4, "sent");
    go();
    const one = await first;
    slow.mockRestore();
    expect(await one.entries()).toHaveLength(5);
    expect((await two.entries()).filter(({ answer }) => answer !== null).map(({ round }) => round)).toEqual([1, 4]);
    expect(await one.sound()).toBe(true);
  });

  test("that was changed by hand before is found out after", async () => {
    await writtenByVersion1(FIRST.map((entry) => (entry.index === 1 ? { ...entry, dataset: "sample of b" } : entry)));
    const ledger = await Ledger.open(name);
    expect(await ledger.entries()).toHaveLength(4);
    expect(await ledger.sound()).toBe(false);
  });

  test("whose old entries are changed later is found out, though their bytes are gone", async () => {
    await writtenByVersion1(FIRST);
    const ledger = await Ledger.open(name);
    await change(0, (entry) => (entry.releases = []));
    expect(await ledger.sound()).toBe(false);
  });

  test("shuts out a page of version 1, which would write entries without hashes", async () => {
    (await Ledger.open(name)).close();
    const request = indexedDB.open(name, 1);
    const error = await new Promise((resolve) => (request.onerror = () => resolve(request.error?.name)));
    expect(error).toBe("VersionError");
  });
});
