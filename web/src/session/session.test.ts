import "fake-indexeddb/auto";
import { serialize } from "node:v8";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { type Signing, signed, signingKey, tasks, toHex } from "../golden.ts";
import { TrainingRoom } from "../learning/room.ts";
import { Ledger } from "../privacy/ledger.ts";
import { PrivacyRoom } from "../privacy/privacy.ts";
import { canonical } from "../wire/frames.ts";
import { Refused, STOPPED } from "../wire/refusal.ts";
import { DataRoom } from "../workers/data.ts";
import { Farewells } from "./farewell.ts";
import { Line } from "./line.ts";
import { Marker } from "./marker.ts";
import { type Parts, openSession } from "./open.ts";
import type { Rooms } from "./rooms.ts";
import type { Choice, Session, SessionEvent } from "./session.ts";

const task = tasks["webfed-digits"];
const choice: Choice = { budget: { limit: 4, delta: 1e-4, basis: "proven", adjacency: "record-add-remove" } };
const drawings = Array.from({ length: 30 }, (_, i) => ({
  label: i % 10, width: 8, height: 8, pixels: Uint8Array.from({ length: 64 }, (_, p) => ((p * (i + 3)) % 17) * 15),
}));

/** A server's end of connections, under the test's hand. */
class Server {
  sockets: Socket[] = [];
  answer: Record<string, unknown> = { type: "welcome", protocol: 2, client: 2, known: false, status: { round: 0, participants: 1, needed: 1 } };
  reachable = true;
  /** whether it answers pings */
  alive = false;

  open = (url: string, protocols: string[]): WebSocket => {
    const socket = new Socket(this, url, protocols);
    this.sockets.push(socket);
    queueMicrotask(() => (this.reachable ? socket.opened() : socket.lose(1006)));
    return socket as unknown as WebSocket;
  };

  get now(): Socket {
    return this.sockets.at(-1)!;
  }
}

class Socket {
  binaryType = "";
  readyState = 0;
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string | ArrayBuffer }) => void) | null = null;
  onclose: ((event: { code: number; wasClean: boolean }) => void) | null = null;
  texts: Record<string, any>[] = [];
  frames: Uint8Array[] = [];

  constructor(readonly server: Server, readonly url: string, readonly protocols: string[]) {}

  opened(): void {
    this.readyState = 1;
    this.onopen?.();
  }

  send(data: string | Uint8Array): void {
    if (typeof data !== "string") this.frames.push(data.slice());
    else {
      this.texts.push(JSON.parse(data));
      const { type } = this.texts.at(-1)!;
      if (type === "hello") queueMicrotask(() => this.say(this.server.answer));
      if (type === "ping" && this.server.alive) queueMicrotask(() => this.say({ type: "pong" }));
      if (type === "leave" && this.server.reachable) queueMicrotask(() => this.lose(1000));
    }
  }

  say(message: Record<string, unknown>): void {
    this.onmessage?.({ data: JSON.stringify(message) });
    if (message["type"] === "refused") this.lose(Number(message["close"] ?? 4400));
  }

  ask(round: number, fill = 0, signing: Partial<Signing> = {}): void {
    this.onmessage?.({ data: request(round, fill, signing).buffer });
  }

  lose(code: number): void {
    this.readyState = 3;
    this.onclose?.({ code, wasClean: code !== 1006 });
  }

  close(): void {
    this.readyState = 3;
    if (this.server.reachable) queueMicrotask(() => this.onclose?.({ code: 1000, wasClean: true }));
  }
}

function request(round: number, fill: number, signing: Partial<Signing>): Uint8Array<ArrayBuffer> {
  const header = new TextEncoder().encode(canonical({ arrays: { parameters: [650] }, federation: task.federation, round, settings: task.plan.settings }));
  const plan = new Uint8Array(8 + header.length + 2600);
  plan.set([0x53, 0x50, 2, 0]);
  const view = new DataView(plan.buffer);
  view.setUint32(4, header.length, true);
  plan.set(header, 8);
  for (let i = 0; i < 650; i += 1) view.setFloat32(8 + header.length + 4 * i, fill, true);
  const message = signed(plan, { federation: task.federation, round, terms: task.terms, ...signing });
  return Uint8Array.from([0x53, 0x51, 2, 3, 6, 0, 0, 0, ...new TextEncoder().encode("report"), ...message]);
}

let count = 0;
let name = "";
let server: Server;
let events: SessionEvent[];
let session: Session;
let store: { getItem: () => string | null; setItem: (_: string, text: string) => void };
const freely = async (what: () => Promise<void>) => (await what(), true);
const farewells = (alone = freely) => new Farewells(server.open, store, alone);

/** The real rooms, without workers around them. */
function roomsOn(database: string): Parts["rooms"] {
  return (onStep) => {
    const opened = Ledger.open(database).then((ledger) => new PrivacyRoom(ledger));
    const away = <T extends object>(room: Promise<T> | T) =>
      new Proxy({}, { get: (_, key) => async (...given: any[]) => (await room as any)[key](...given) });
    return {
      data: away(new DataRoom()), training: away(new TrainingRoom(onStep)), privacy: away(opened), close: () => {},
    } as unknown as Rooms;
  };
}

/** Rooms of which some answer only when the test says so, or otherwise than they would. */
function roomsWith(changed: (rooms: any) => Record<string, any>): Parts["rooms"] {
  return (onStep) => {
    const rooms: any = roomsOn(name)(onStep);
    for (const [room, methods] of Object.entries(changed(rooms))) {
      rooms[room] = new Proxy(rooms[room], { get: (own: any, key: string) => methods[key] ?? own[key] });
    }
    return rooms;
  };
}

/** A door that is shut until it is opened; `reached` is kept once somebody stands before it. */
function door() {
  let open = () => {};
  let arrive = () => {};
  const passed = new Promise<void>((resolve) => (open = resolve));
  const reached = new Promise<void>((resolve) => (arrive = resolve));
  return { open: () => open(), reached, pass: async () => (arrive(), passed) };
}

/** A data room that has the drawings for a sample, once it may. */
const loading = (pass: () => Promise<void>) => ({
  load: async () => pass().then(() => new DataRoom().load({ kind: "drawings", drawings }, task, null)),
});

const served = (async (address: RequestInfo | URL) => {
  const place = String(address);
  if (place.endsWith("/task")) return new Response(JSON.stringify(task));
  if (place.endsWith("/model.bin")) return new Response(new Float32Array(650), { headers: { "X-Sordino-Round": "20" } });
  throw new Error(`nobody should ask for ${place}`);
}) as typeof fetch;

function begin(given: Partial<Parameters<typeof openSession>[0]> = {}, parts: Partial<Parts> = {}): Session {
  const made = openSession(
    { server: "http://here", federation: "webfed-digits", data: { kind: "drawings", drawings }, choice, task: structuredClone(task), ...given },
    { rooms: roomsOn(name), fetch: served, socket: server.open, farewells: farewells(), marker: new Marker(null), pace: 0.001, ...parts },
  );
  made.subscribe((event) => events.push(event));
  return made;
}

/** All that this browser stores of a page. */
async function everything(database: string): Promise<unknown[]> {
  const request = indexedDB.open(database);
  const db = await new Promise<IDBDatabase>((resolve) => (request.onsuccess = () => resolve(request.result)));
  const all = [...db.objectStoreNames].map((store) => {
    const found = db.transaction(store).objectStore(store).getAll();
    return new Promise((resolve) => (found.onsuccess = () => resolve(found.result)));
  });
  return Promise.all(all).finally(() => db.close());
}

/** How many pairs of neighbouring values other than 0 are in some bytes: one value alone may be there by chance. */
function pairsIn(bytes: Buffer, values: Float32Array): number {
  let found = 0;
  for (let i = 0; i + 1 < values.length; i += 2) {
    if (values[i] && values[i + 1] && bytes.includes(Buffer.from(values.slice(i, i + 2).buffer))) found += 1;
  }
  return found;
}

const heard = (type: SessionEvent["type"]) => events.filter((event) => event.type === type);
const until = (condition: () => unknown) => vi.waitFor(() => { if (!condition()) throw new Error("not yet"); }, { timeout: 15_000, interval: 5 });

beforeEach(() => {
  (globalThis as any).navigator ??= { hardwareConcurrency: 1 };
  name = `session ${(count += 1)}`;
  server = new Server();
  let kept: string | null = null;
  store = { getItem: () => kept, setItem: (_, text) => (kept = text) };
  events = [];
  session = begin();
});
afterEach(() => session.leave());

describe("taking part", () => {
  test("joins, trains, and sends what the ledger has", async () => {
    await session.start();
    expect(session.state).toBe("waiting");
    expect(server.now.url).toBe("ws://here/api/federations/webfed-digits/ws");
    expect(server.now.protocols).toEqual(["sordino.2"]);
    expect(Object.keys(server.now.texts[0]!).sort()).toEqual(["id", "kind", "last", "proof", "protocol", "task", "token", "type"]);
    expect(heard("joined")).toEqual([{ type: "joined", client: 2, round: 0, rounds: 20, resumed: false }]);
    expect(heard("data")).toMatchObject([{ summary: { records: 30 } }]);
    server.now.ask(1);
    await until(() => server.now.frames.length);
    const [frame] = server.now.frames;
    expect([...frame!.subarray(0, 4)]).toEqual([0x53, 0x41, 2, 1]);
    expect(frame!.length).toBe(12 + 24 + 4 * 650);
    await until(() => heard("budget").length === 2);
    const [line] = await session.ledger();
    expect(line).toMatchObject({ round: 1, sent: "sent", bytes: 24 + 2600 });
    server.now.say({ type: "received", round: 1 });
    await vi.waitFor(async () => expect((await session.ledger())[0]!.sent).toBe("received"), { timeout: 15_000 });
    expect(heard("trained")).toHaveLength(1);
    expect((await session.budget()).spent).toBeCloseTo(line!.spentAfter, 12);
  });

  test.each([["a table without a record", ""], ["a table whose only record cannot be used", `${Array(64).fill("many").join()},1`]])(
    "joins with %s, and sends as much as anybody: to keep its owner out would tell of a record", async (_, row) => {
      const file = new File([`${Array.from({ length: 64 }, (_, k) => `p${k}`).join()},class\n${row}\n`], "mine.csv");
      session = begin({ data: { kind: "csv", file, first: "names" } });
      await session.start();
      expect(heard("data")).toMatchObject([{ summary: { records: 0 } }]);
      server.now.ask(1);
      await until(() => server.now.frames.length);
      expect(server.now.frames[0]!.length).toBe(12 + 24 + 4 * 650);
      expect(server.now.frames[0]![3]).toBe(1);
      await until(() => heard("noise").length && heard("budget").length === 2);
      const [{ clear, sent }] = heard("noise") as [Extract<SessionEvent, { type: "noise" }>];
      expect(clear!.every((value) => value === 0)).toBe(true);
      expect(sent.some((value) => value !== 0)).toBe(true);
    },
  );

  test("hands all blocks of records over at once: none of another sample's come between them", async () => {
    const { pass, open } = door();
    let added = 0;
    session = begin({}, { rooms: roomsWith(({ training }) => ({ training: {
      take: async (...given: unknown[]) => pass().then(() => training.take(...given)),
      add: async (...given: unknown[]) => ((added += 1), training.add(...given)),
    } })) });
    const started = session.start();
    await until(() => added === 1); // while the first call is still under way
    open();
    await started;
  });

  test("shows a report without its noise to the person, and to nobody else", async () => {
    await session.start();
    server.now.ask(1);
    await until(() => server.now.frames.length && heard("noise").length);
    const [{ clear, sent }] = heard("noise") as [Extract<SessionEvent, { type: "noise" }>];
    const body = server.now.frames[0]!.slice(12 + 24);
    expect(toHex(new Uint8Array(sent.buffer))).toBe(toHex(body));
    expect(clear).toHaveLength(650);
    expect(clear).not.toEqual(sent);
    await until(() => heard("budget").length === 2);
    const told = Buffer.concat([...server.now.frames, Buffer.from(JSON.stringify(server.now.texts))]);
    const stored = serialize(await everything(name));
    expect(pairsIn(told, sent)).toBeGreaterThan(100); // what is looked for would be found
    expect(pairsIn(stored, sent)).toBeGreaterThan(100);
    expect(pairsIn(told, clear!)).toBe(0);
    expect(pairsIn(stored, clear!)).toBe(0);
  });

  test("sends the same, and before it is shown, where showing it fails", async () => {
    let before = -1;
    session.subscribe((event) => {
      if (event.type !== "noise") return;
      before = server.now.frames.length;
      throw new Error("this picture cannot be drawn");
    });
    await session.start();
    server.now.ask(1);
    await until(() => heard("budget").length === 2);
    expect([before, server.now.frames.length, heard("error")]).toEqual([1, 1, []]);
    expect(server.now.frames[0]!.length).toBe(12 + 24 + 4 * 650);
    expect(session.state).toBe("waiting");
  });

  test("tells who is here, how many places there are and when it begins, as the server says", async () => {
    await session.start();
    server.now.say({ type: "status", round: 0, participants: 2, needed: 3, places: 5, starts_in: 7.5 });
    server.now.say({ type: "status", round: 0, participants: 3, needed: 3, places: 5, starts_in: null });
    const [, waiting, soon] = heard("participants");
    expect(waiting).toEqual({ type: "participants", connected: 2, needed: 3, places: 5, startsIn: 7.5 });
    expect(soon).toMatchObject({ connected: 3, startsIn: null });
  });

  test("tells of each newer model once, and answers with the round that it has learnt in", async () => {
    await session.start();
    server.now.ask(1);
    await until(() => server.now.frames.length);
    server.now.say({ type: "status", round: 1, participants: 1, needed: 1 });
    server.now.ask(2, 0.5);
    await until(() => server.now.frames.length === 2);
    expect(heard("model")).toMatchObject([{ round: 0 }, { round: 1 }]);
    expect((heard("model")[1] as any).parameters[0]).toBe(0.5);
    expect(await session.predict({ width: 8, height: 8, pixels: new Uint8Array(64) })).toMatchObject({ round: 1 });
    await expect(session.predict({ values: [1, 2] })).rejects.toThrow(/64 values, not 2/);
    expect((await session.predict({ values: new Float32Array(64) })).probabilities).toHaveLength(10);
    server.now.say({ type: "ended" });
    await until(() => heard("model").length === 3);
    expect(heard("model")[2]).toMatchObject({ round: 20 });
  });

  test("asks again at the end, though an older model is still on its way", async () => {
    const older = door();
    let asked = 0;
    const slow = (async (address: string) => {
      if (!address.endsWith("/model.bin")) return served(address);
      const first = (asked += 1) === 1;
      if (first) await older.pass();
      return new Response(new Float32Array(650), { headers: { "X-Sordino-Round": first ? "0" : "20" } });
    }) as typeof fetch;
    session = begin({}, { fetch: slow });
    await session.start();
    const early = session.predict({ width: 8, height: 8, pixels: new Uint8Array(64) });
    await older.reached;
    server.now.say({ type: "ended" });
    await until(() => heard("model").length);
    older.open();
    await early;
    expect(heard("model")).toMatchObject([{ round: 20 }]);
    expect(await session.predict({ width: 8, height: 8, pixels: new Uint8Array(64) })).toMatchObject({ round: 20 });
    expect(asked).toBe(2);
  });

  test("a forged plan neither ends the round that is trained, nor costs one", async () => {
    await session.leave();
    const training = door();
    session = begin({}, { rooms: roomsWith(({ training: { train } }) => ({
      training: { train: async (job: any) => (await training.pass(), train(job)) },
    })) });
    await session.start();
    server.now.ask(1);
    await training.reached;
    server.now.ask(2, 1, { key: signingKey("11".repeat(32)) });
    await new Promise((resolve) => setTimeout(resolve, 50));
    training.open();
    await until(() => server.now.frames.length === 2);
    const [report, refusal] = server.now.frames;
    expect([...report!.subarray(0, 4)]).toEqual([0x53, 0x41, 2, 1]);
    expect(report!.length).toBe(12 + 24 + 4 * 650);
    expect([refusal![3], new TextDecoder().decode(refusal)]).toEqual([0, expect.stringContaining("did not sign")]);
    server.now.ask(2);
    await until(() => server.now.frames.length === 3);
    expect((await session.ledger()).map(({ round }) => round)).toEqual([1, 2]);
    expect(heard("refused")).toMatchObject([{ final: false }]);
  });

  test("an invitation's link to another key than the server's is refused before anything is sent", async () => {
    await session.leave();
    session = begin({ key: "00".repeat(32) });
    await expect(session.start()).rejects.toThrow(/another key/);
    expect(server.sockets).toHaveLength(0);
  });

  test("trains on the sample even where the first plan comes before its records do", async () => {
    await session.leave();
    const records = door();
    session = begin({ data: { kind: "sample" } }, { rooms: roomsWith(() => ({ data: loading(records.pass) })) });
    const started = session.start();
    await records.reached; // the welcome is there, the records are not
    server.now.ask(1);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(server.now.frames).toHaveLength(0);
    records.open();
    await started;
    await until(() => server.now.frames.length);
    expect(heard("error")).toEqual([]);
    expect(heard("trained")).toMatchObject([{ round: 1 }]);
    expect(heard("data")).toMatchObject([{ summary: { records: 30 } }]);
  });

  test("tells of accuracy once a round, and of who is there", async () => {
    await session.start();
    for (const accuracy of [0.5, 0.5]) server.now.say({ type: "status", round: 3, participants: 4, needed: 2, accuracy });
    expect(heard("accuracy")).toEqual([{ type: "accuracy", round: 3, accuracy: 0.5, loss: null }]);
    expect(heard("participants").at(-1)).toMatchObject({ type: "participants", connected: 4, needed: 2 });
  });

  test("ends when the federation does; the model can be tried then", async () => {
    await session.start();
    server.now.say({ type: "ended", why: "all rounds are done" });
    server.now.lose(1000);
    expect(session.state).toBe("ended");
    expect(heard("ended")).toEqual([{ type: "ended", reason: "finished" }]);
    const { probabilities, best } = await session.predict({ width: 8, height: 8, pixels: new Uint8Array(64) });
    expect(probabilities.map((p) => p.toFixed(3))).toEqual(Array(10).fill("0.100")); // the model of zeros
    expect(best).toBe(0);
  });

  test("asks for the last model once, and not at every stroke of a drawing", async () => {
    const asked = vi.fn(served);
    session = begin({}, { fetch: asked });
    await session.start();
    server.now.say({ type: "ended", why: "all rounds are done" });
    for (let stroke = 0; stroke < 3; stroke += 1) await session.predict({ width: 8, height: 8, pixels: new Uint8Array(64) });
    expect(asked.mock.calls.filter(([address]) => String(address).endsWith("/model.bin"))).toHaveLength(1);
  });

  test("leaves when the person does, and says so", async () => {
    await session.start();
    const { now } = server;
    await session.leave();
    expect(now.texts.at(-1)).toEqual({ type: "leave" });
    expect(session.state).toBe("left");
    now.ask(1);
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(now.frames).toHaveLength(0);
  });
});

describe("a line that breaks", () => {
  test.each([["privacy", "judge"], ["training", "train"]])("in %s.%s is what is said until it is back", async (room, step) => {
    const held = door();
    const rooms = roomsWith(({ [room]: own }) => ({
      [room]: { [step]: async (...given: unknown[]) => { const made = await own[step](...given); await held.pass(); return made; } },
    }));
    session = begin({}, { rooms });
    await session.start();
    server.now.ask(1);
    await held.reached;
    server.reachable = false;
    server.now.lose(1006);
    held.open();
    await until(() => heard("released").length);
    const states = heard("state").map((event) => (event as any).state);
    expect(new Set(states.slice(states.indexOf("offline")))).toEqual(new Set(["offline"]));
    server.reachable = true;
    await until(() => server.now.frames.length || (server.now.readyState === 1 && session.state === "waiting"));
  });

  test("is taken up again with the same identity, and the same bytes are sent again", async () => {
    await session.start();
    server.now.ask(1);
    await until(() => server.now.frames.length);
    const [first] = server.now.frames;
    const { id } = server.now.texts[0]!;
    server.now.lose(1006);
    expect(session.state).toBe("offline");
    await until(() => session.state === "waiting");
    expect(server.sockets).toHaveLength(2);
    expect(server.now.texts[0]).toMatchObject({ id, last: { round: 1 } });
    server.now.ask(1);
    await until(() => server.now.frames.length);
    expect(toHex(server.now.frames[0]!)).toBe(toHex(first!));
    await until(() => heard("released").length === 2);
    expect(heard("released")).toMatchObject([{ replayed: false }, { replayed: true }]);
    expect(await session.ledger()).toHaveLength(1);
  });

  test("during training loses nothing: the report goes when the server asks again", async () => {
    await session.start();
    server.now.ask(1);
    server.now.lose(1006);
    await until(() => heard("released").length);
    await until(() => server.sockets.length === 2 && server.now.texts.length);
    expect(server.now.frames).toHaveLength(0); // nobody has asked on this line yet
    server.now.ask(1);
    await until(() => server.now.frames.length);
    expect(await session.ledger()).toHaveLength(1);
  });

  test("for a minute is waited for, longer each time", async () => {
    await session.start();
    server.reachable = false;
    server.now.lose(1006);
    await until(() => heard("offline").length >= 5);
    const waits = heard("offline").map((event) => (event as any).retryInSeconds);
    waits.forEach((wait, k) => {
      expect(wait).toBeLessThanOrEqual(2 ** k);
      expect(wait).toBeGreaterThanOrEqual(2 ** k / 2);
    });
    server.reachable = true;
    await until(() => session.state === "waiting");
    expect(heard("online").length).toBeGreaterThan(0);
  });

  test("survives a reload of the page: ledger, identity and bytes are there", async () => {
    await session.start();
    server.now.ask(1);
    await until(() => server.now.frames.length);
    const [first] = server.now.frames;
    const { id } = server.now.texts[0]!;
    const again = begin();
    await again.start();
    expect(server.now.texts[0]!["id"]).toBe(id);
    server.now.ask(1);
    await until(() => server.now.frames.length);
    expect(toHex(server.now.frames[0]!)).toBe(toHex(first!));
    await again.leave();
  });
});

test("a connection on which the server never answers the hello is given up and made again", async () => {
  server.answer = { type: "pong" };
  const line = new Line({
    url: "ws://here", socket: server.open, pace: 0.001, pulse: 20, hello: async () => ({ type: "hello" }), welcome: async () => {},
    message: () => {}, request: () => {}, away: () => {}, closed: () => {},
  });
  await until(() => server.sockets.length > 1);
  line.close();
});

test("a line that died without a word, as when a phone sleeps, is noticed and taken up again", async () => {
  const nothing = () => {};
  const away = vi.fn();
  const line = new Line({
    url: "ws://here", socket: server.open, pace: 0.001, pulse: 20, hello: async () => ({ type: "hello" }), welcome: async () => {},
    message: nothing, request: nothing, away, closed: nothing,
  });
  await until(() => server.now.texts.some(({ type }) => type === "ping"));
  await until(() => server.sockets.length > 1); // the test's server never answers a ping
  expect(away).toHaveBeenCalled();
  line.close();
});

test("a server that hosts another federation by now is told from one that cannot be reached", async () => {
  let status = 200;
  const changed = (async (address: string) => (status === 200 ? served(address) : new Response("{}", { status }))) as typeof fetch;
  session = begin({}, { fetch: changed });
  await session.start();
  status = 503;
  server.reachable = false;
  server.now.lose(1006);
  await until(() => heard("offline").length > 4);
  expect(session.state).toBe("offline");
  status = 404;
  await until(() => session.state === "failed");
  expect(heard("refused").at(-1)).toMatchObject({ reason: expect.stringContaining("no federation called webfed-digits"), final: true });
  const before = server.sockets.length;
  await new Promise((resolve) => setTimeout(resolve, 60));
  expect(server.sockets).toHaveLength(before);
});

describe("a clock that jumps", () => {
  const pulse = 20_000;
  let line: Line;

  beforeEach(async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "Date"] });
    const nothing = () => {};
    line = new Line({
      url: "ws://here", socket: server.open, pace: 1, pulse, hello: async () => ({ type: "hello" }), welcome: async () => {},
      message: nothing, request: nothing, away: nothing, closed: nothing,
    });
    await vi.advanceTimersByTimeAsync(0);
  });
  afterEach(() => {
    line.close();
    vi.useRealTimers();
  });
  const jump = (milliseconds: number) => vi.setSystemTime(Date.now() + milliseconds);

  test("as for a tab in the background, where a minute passes from tick to tick, ends no line that is alive", async () => {
    server.alive = true;
    for (let minute = 0; minute < 10; minute += 1) {
      jump(60_000);
      await vi.advanceTimersByTimeAsync(pulse);
    }
    expect(server.sockets).toHaveLength(1);
    expect(server.now.texts.filter(({ type }) => type === "ping").length).toBeGreaterThanOrEqual(10);
  });

  test("back by an hour does not keep a dead line", async () => {
    jump(-3_600_000);
    await vi.advanceTimersByTimeAsync(5 * pulse);
    expect(server.sockets.length).toBeGreaterThan(1);
  });

  test("after a sleep ends a dead line soon, and looking at the page often ends none that is slow", async () => {
    line.close();
    let wake = () => {};
    vi.stubGlobal("document", { hidden: false, addEventListener: (_: string, heard: () => void) => (wake = heard), removeEventListener: () => {} });
    line = new Line({
      url: "ws://here", socket: server.open, pace: 1, pulse, hello: async () => ({ type: "hello" }), welcome: async () => {},
      message: () => {}, request: () => {}, away: () => {}, closed: () => {},
    });
    await vi.advanceTimersByTimeAsync(0);
    const before = server.sockets.length;
    for (let look = 0; look < 20; look += 1) wake();
    await vi.advanceTimersByTimeAsync(pulse / 4);
    expect(server.sockets).toHaveLength(before);
    jump(3_600_000);
    wake();
    await vi.advanceTimersByTimeAsync(pulse / 2 + 1000);
    expect(server.sockets).toHaveLength(before + 1);
    vi.unstubAllGlobals();
  });
});

describe("a line on which nothing is heard any longer", () => {
  const away = vi.fn();
  const open = (): Line =>
    new Line({
      url: "ws://here", socket: server.open, pace: 1, hello: async () => ({ type: "hello" }), welcome: async () => {},
      message: () => {}, request: () => {}, away, closed: () => {},
    });
  let line: Line;

  beforeEach(() => {
    away.mockClear();
    server.alive = true;
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "Date"] });
  });
  afterEach(() => {
    line.close();
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  test("is given up within ten seconds, and it is said for how long", async () => {
    line = open();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(away).not.toHaveBeenCalled();
    server.alive = false;
    await vi.advanceTimersByTimeAsync(10_100);
    expect(away).toHaveBeenCalledTimes(1);
    expect(away.mock.lastCall![1]).toMatch(/not answered for \d+ seconds/);
  });

  test("has the time that the server names, where plans are large", async () => {
    server.answer = { type: "welcome", client: 0, known: false, limits: { pulse: 40 } };
    line = open();
    await vi.advanceTimersByTimeAsync(1_000);
    server.alive = false;
    await vi.advanceTimersByTimeAsync(39_000);
    expect(away).not.toHaveBeenCalled();
    await vi.advanceTimersByTimeAsync(45_000);
    expect(away).toHaveBeenCalledTimes(1);
  });

  test("stays while a long report is leaving", async () => {
    line = open();
    await vi.advanceTimersByTimeAsync(1_000);
    server.alive = false;
    for (let left = 9; left > 0; left -= 1) {
      Object.assign(server.now, { bufferedAmount: left * 100_000 });
      await vi.advanceTimersByTimeAsync(5_000);
    }
    expect(away).not.toHaveBeenCalled();
    await vi.advanceTimersByTimeAsync(10_100);
    expect(away).toHaveBeenCalledTimes(1);
  });

  test("is given up within two seconds of the browser's word that there is no network, unless the server answers", async () => {
    const heard: Record<string, () => void> = {};
    vi.stubGlobal("addEventListener", (name: string, listener: () => void) => (heard[name] = listener));
    vi.stubGlobal("removeEventListener", () => {});
    line = open();
    await vi.advanceTimersByTimeAsync(1_000);
    heard["offline"]!();
    await vi.advanceTimersByTimeAsync(2_500);
    expect(away).not.toHaveBeenCalled();
    server.alive = false;
    vi.stubGlobal("navigator", { onLine: false });
    heard["offline"]!();
    await vi.advanceTimersByTimeAsync(2_100);
    expect(away.mock.lastCall![1]).toBe("this device has no network");
  });
});

test("a page that cannot say who it is names its own reason, not the server's", async () => {
  const words = "the browser has no room left for the page's ledger, so nothing was sent: free some storage and reload the page";
  let full = true;
  session = begin({}, { rooms: roomsWith(({ privacy }) => ({
    privacy: { identity: async () => { if (full) throw new Error(words); return privacy.identity(); } },
  })) });
  const started = session.start();
  await until(() => heard("offline").length > 0);
  expect(heard("offline")[0]).toMatchObject({ reason: words });
  full = false;
  await started;
  expect(session.state).toBe("waiting");
});

describe("a line that breaks while the sample is on its way", () => {
  /** The first load waits at a door, every later one goes through. */
  async function reconnected(first: () => Promise<void>): Promise<void> {
    await session.leave();
    let loads = 0;
    const pass = async () => ((loads += 1) === 1 ? first() : undefined);
    session = begin({ data: { kind: "sample" } }, { rooms: roomsWith(() => ({ data: loading(pass) })) });
    const started = session.start();
    await until(() => loads === 1);
    server.now.ask(1); // of this line: dropped with it
    server.now.lose(1006);
    await until(() => loads === 2);
    await started;
    expect(session.state).toBe("waiting");
  }

  test("does not hold up the next one, though its records never come", async () => {
    await reconnected(() => new Promise(() => {}));
    server.now.ask(1);
    await until(() => server.now.frames.length);
    expect(heard("trained")).toMatchObject([{ round: 1 }]);
    expect(heard("error")).toEqual([]);
  });

  test("does not end the next one, though its records cannot be had", async () => {
    const records = door();
    await reconnected(() => records.pass().then(() => Promise.reject(new Error("gone"))));
    records.open();
    server.now.ask(1);
    await until(() => server.now.frames.length);
    expect(session.state).not.toBe("failed");
    expect(heard("refused")).toEqual([]);
  });

  test("does not put its records in the place of the next one's", async () => {
    const records = door();
    await reconnected(records.pass);
    records.open();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(heard("data")).toHaveLength(1);
    expect(heard("joined")).toHaveLength(1);
    expect(heard("online")).toHaveLength(0);
  });
});

describe("a pause", () => {
  test("stops answers, and what was asked for is answered after it", async () => {
    await session.start();
    server.now.ask(1);
    session.pause();
    expect(session.state).toBe("paused");
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(server.now.frames).toHaveLength(0);
    expect(await session.ledger()).toHaveLength(0);
    await session.start();
    await until(() => server.now.frames.length);
    expect(server.now.texts.map(({ type }) => type)).toEqual(["hello", "pause", "resume"]);
    expect(await session.ledger()).toHaveLength(1);
  });

  test("is not spoken over by training that has not stopped yet", async () => {
    const training = door();
    const rooms: Parts["rooms"] = (onStep) => {
      const train = async () => { onStep(1, 5); await training.pass(); onStep(2, 5); throw new Error("stopped"); };
      return roomsWith(() => ({ training: { train } }))(onStep);
    };
    session = begin({}, { rooms });
    await session.start();
    server.now.ask(1);
    await training.reached;
    expect(heard("progress")).toMatchObject([{ step: 1, steps: 5 }]);
    session.pause();
    training.open();
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(heard("progress")).toHaveLength(1);
  });

  test("that outlasts its round costs nothing", async () => {
    await session.start();
    server.now.ask(1);
    session.pause();
    server.now.say({ type: "status", round: 1, participants: 1, needed: 1 });
    await session.start();
    await until(() => server.now.frames.length);
    const [frame] = server.now.frames;
    expect(frame![3]).toBe(0); // no report, but that there is none
    expect(frame!.at(-24 + 3)).toBe(2);
    expect(await session.ledger()).toHaveLength(0);
  });
});

describe("whatever happens in between", () => {
  test("a budget that cannot be read after a report costs the next round nothing", async () => {
    await session.leave();
    const report = door();
    let broken = false;
    session = begin({}, { rooms: roomsWith(({ privacy }) => ({ privacy: {
      budget: async () => { if (broken) { broken = false; throw new Error("aborted"); } return privacy.budget(); },
      mark: async (...given: any[]) => { await report.pass(); return privacy.mark(...given); },
    } })) });
    await session.start();
    server.now.ask(1);
    await report.reached; // the report of round 1 has gone
    broken = true;
    server.now.ask(2, 0.5);
    report.open();
    await until(() => server.now.frames.length === 2);
    expect(broken).toBe(false);
    expect(server.now.frames.map((frame) => frame[3])).toEqual([1, 1]);
    await vi.waitFor(async () => expect((await session.ledger()).map(({ round, sent }) => [round, sent])).toEqual([[1, "sent"], [2, "sent"]]), { timeout: 15_000 });
  });

  test("who leaves while the examples are read joins nothing", async () => {
    const records = door();
    session = begin({}, { rooms: roomsWith(() => ({ data: loading(records.pass) })) });
    const started = session.start();
    await records.reached;
    await session.leave();
    records.open();
    await started;
    expect(server.sockets).toHaveLength(0);
    expect(session.state).toBe("left");
  });

  test("who leaves while the sample is on its way answers no plan, and the start is over", async () => {
    const records = door();
    session = begin({ data: { kind: "sample" } }, { rooms: roomsWith(() => ({ data: loading(records.pass) })) });
    const started = session.start();
    await records.reached;
    server.now.ask(1);
    await session.leave();
    await started;
    records.open();
    await until(() => heard("data").length);
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(session.state).toBe("left");
    expect(server.now.frames).toHaveLength(0);
    expect(await session.ledger()).toHaveLength(0);
    expect(heard("joined")).toHaveLength(0);
  });

  test("a pause while a report is written down keeps it back, and the same bytes go after it", async () => {
    const ledger = door();
    const rooms = roomsWith(({ privacy }) => ({
      privacy: { release: async (...given: unknown[]) => { const made = await privacy.release(...given); await ledger.pass(); return made; } },
    }));
    session = begin({}, { rooms });
    await session.start();
    server.now.ask(1);
    await ledger.reached;
    session.pause();
    ledger.open();
    await until(() => heard("released").length);
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(server.now.frames).toHaveLength(0);
    expect(await session.ledger()).toMatchObject([{ round: 1, sent: "kept" }]);
    await session.start();
    await until(() => server.now.frames.length);
    await until(() => session.state === "waiting");
    expect(server.now.frames).toHaveLength(1);
    expect(await session.ledger()).toMatchObject([{ round: 1, sent: "sent" }]);
  });

  test("whoever leaves while a report is written down sends nothing any more", async () => {
    const ledger = door();
    const rooms = roomsWith(({ privacy }) => ({
      privacy: { release: async (...given: unknown[]) => { await ledger.pass(); return privacy.release(...given); } },
    }));
    session = begin({}, { rooms });
    await session.start();
    const { now } = server;
    now.ask(1);
    await ledger.reached;
    await session.leave();
    ledger.open();
    await until(() => heard("released").length);
    expect(now.frames).toHaveLength(0);
    expect(session.state).toBe("left");
  });

  test("an error during a pause says nothing to the server", async () => {
    const training = door();
    const rooms = roomsWith(() => ({ privacy: { judge: async () => { await training.pass(); throw new Error("no room left"); } } }));
    session = begin({}, { rooms });
    await session.start();
    server.now.ask(1);
    await training.reached;
    session.pause();
    training.open();
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(server.now.frames).toHaveLength(0);
    expect(session.state).toBe("paused");
  });

  test("a pause while the sample is on its way is a pause, and going on is getting ready", async () => {
    const records = door();
    session = begin({ data: { kind: "sample" } }, { rooms: roomsWith(() => ({ data: loading(records.pass) })) });
    const started = session.start();
    await records.reached;
    session.pause();
    server.now.ask(1);
    await session.start();
    expect(session.state).toBe("preparing");
    session.pause();
    records.open();
    await started;
    expect(session.state).toBe("paused");
    expect(server.now.frames).toHaveLength(0);
    await session.start();
    await until(() => server.now.frames.length);
    expect(heard("trained")).toHaveLength(1);
  });

  test("a reconnect under another number whose sample cannot be had is said, and nothing goes on with the old one", async () => {
    let loads = 0;
    const rooms = roomsWith(() => ({
      data: { load: async () => { if ((loads += 1) > 1) throw new Error("gone"); return new DataRoom().load({ kind: "drawings", drawings }, task, null); } },
    }));
    session = begin({ data: { kind: "sample" } }, { rooms });
    await session.start();
    server.answer = { ...server.answer, client: 3 };
    server.now.lose(1006);
    await until(() => session.state === "failed");
    expect(heard("refused")).toMatchObject([{ reason: "gone", final: true }]);
  });

  test("private training that breaks ends its round without a report, which is counted, and answered so again", async () => {
    session = begin({}, { rooms: roomsWith(() => ({ training: { train: async () => { throw new Error("out of memory"); } } })) });
    await session.start();
    server.now.ask(1);
    await until(() => server.now.frames.length);
    await until(() => heard("budget").length === 2);
    server.now.ask(1);
    await until(() => server.now.frames.length === 2);
    const [first, again] = server.now.frames;
    expect(again).toEqual(first);
    expect(first![3]).toBe(0);
    expect([...first!.slice(-24, -20)]).toEqual([0x53, 0x52, 2, 2]); // an answer of the kind "declined"
    expect(await session.ledger()).toHaveLength(1);
    expect((await session.budget()).spent).toBeGreaterThan(0);
    expect([heard("error").length, heard("released").length]).toEqual([1, 0]);
  });

  test("a round that is over ends its training: how long it would have taken tells nothing", async () => {
    const stopped = door();
    let stops = 0;
    const train = async () => { await stopped.pass(); throw new Error(STOPPED); };
    const stop = async () => { stops += 1; stopped.open(); };
    session = begin({}, { rooms: roomsWith(() => ({ training: { train, stop } })) });
    await session.start();
    server.now.ask(1);
    await until(() => session.state === "training");
    server.now.say({ type: "status", round: 1 });
    await until(() => server.now.frames.length);
    expect([server.now.frames[0]![3], stops]).toEqual([0, 1]);
    expect(await session.ledger()).toHaveLength(0);
  });
});

describe("the browser's memory", () => {
  const store = () => {
    const kept = new Map<string, string>();
    return { getItem: (key: string) => kept.get(key) ?? null, setItem: (key: string, value: string) => void kept.set(key, value) };
  };

  test("that lost the ledger, or a part of it, is noticed by another store: nothing begins, and nothing is asked of the server", async () => {
    const marker = new Marker(store());
    session = begin({}, { marker });
    await session.start();
    server.now.ask(1);
    await until(() => server.now.frames.length);
    await session.leave();
    session.close();
    session = begin({}, { marker }); // with the ledger that it had
    await session.start();
    session.close();
    const connections = server.sockets.length;
    for (const [database, lines] of [["another", 1], [name, 2]] as const) {
      if (lines === 2) marker.note(2);
      session = begin({}, { marker, rooms: roomsOn(database) });
      await expect(session.start()).rejects.toThrow(Refused);
      expect(session.state).toBe("failed");
    }
    expect(server.sockets.length).toBe(connections);
  });

  test.each([["promised", async () => true, true], ["not promised", async () => false, false], ["never answered", () => new Promise(() => {}), false], ["forbidden", async () => { throw new Error(); }, false]])(
    "is told to last where that was %s", async (_, persist, lasting) => {
      vi.stubGlobal("navigator", { storage: { persist } });
      session = begin();
      await session.start();
      expect(heard("storage")).toEqual([{ type: "storage", lasting }]);
      vi.unstubAllGlobals();
    },
  );
});

describe("a part that the page ends", () => {
  test("lets go of its workers and the line, says nothing more, and its place stays", async () => {
    const training = door();
    const closed = vi.fn();
    const rooms: Parts["rooms"] = (onStep) => ({
      ...roomsWith(({ training: room }) => ({ training: { train: async (job: unknown) => { await training.pass(); return room.train(job); } } }))(onStep),
      close: closed,
    });
    session = begin({}, { rooms });
    await session.start();
    const { now } = server;
    now.ask(1);
    await training.reached;
    const before = events.length;
    session.close();
    expect(closed).toHaveBeenCalledTimes(1);
    expect([session.state, now.readyState]).toEqual(["left", 3]);
    training.open();
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(now.frames).toHaveLength(0);
    expect(now.texts.map(({ type }) => type)).not.toContain("leave");
    expect(events).toHaveLength(before);
    expect(server.sockets).toHaveLength(1); // it does not come back by itself
    session = begin();
    await session.start();
    expect(server.now.texts[0]!["id"]).toBe(now.texts[0]!["id"]);
  });

  test("before it was welcomed has a start that is over", async () => {
    const records = door();
    session = begin({ data: { kind: "sample" } }, { rooms: roomsWith(() => ({ data: loading(records.pass) })) });
    const started = session.start();
    await records.reached;
    session.close();
    await started;
    expect(session.state).toBe("left");
  });
});

describe("leaving", () => {
  const said = (socket: Socket) => socket.texts.map(({ type }) => type).filter((type) => type !== "ping");

  test("tells the server, and nothing is kept", async () => {
    await session.start();
    await session.leave();
    expect(said(server.now)).toEqual(["hello", "leave"]);
    expect(farewells().kept).toEqual([]);
  });

  test.each(["after the line was lost", "while the line is dead without knowing it"])("%s is told when the server is back", async (when) => {
    await session.start();
    server.reachable = false;
    if (when === "after the line was lost") {
      server.now.lose(1006);
      await until(() => session.state === "offline");
    }
    await session.leave();
    expect(session.state).toBe("left");
    expect(farewells().kept).toHaveLength(1);
    await farewells().say(); // nobody hears it
    expect(farewells().kept).toHaveLength(1);
    server.reachable = true;
    await farewells().say(); // as the next page that is opened does
    expect(said(server.now)).toEqual(["hello", "leave"]);
    expect(server.now.texts[0]!["id"]).toBe(server.sockets[0]!.texts[0]!["id"]);
    expect(farewells().kept).toEqual([]);
    const before = server.sockets.length;
    await farewells().say();
    expect(server.sockets).toHaveLength(before); // once is enough
  });

  test("keeps what was spent, and whoever comes back before the server heard of it has not left", async () => {
    await session.start();
    server.now.ask(1);
    await until(() => heard("budget").length === 2);
    const { spent } = await session.budget();
    server.reachable = false;
    server.now.lose(1006);
    await session.leave();
    server.reachable = true;
    session = begin();
    await session.start();
    expect((await session.budget()).spent).toBe(spent);
    expect(spent).toBeGreaterThan(0);
    const before = server.sockets.length;
    await farewells().say();
    expect(server.sockets).toHaveLength(before);
  });

  test("is not told from beside a tab that takes part, nor kept where there is no place any more", async () => {
    await session.start();
    server.reachable = false;
    server.now.lose(1006);
    await session.leave();
    server.reachable = true;
    await farewells(async () => false).say();
    expect(said(server.now)).toEqual([]);
    expect(farewells().kept).toHaveLength(1);
    server.answer = { type: "refused", code: "busy", reason: "later", close: 4429 };
    await farewells().say();
    expect(farewells().kept).toHaveLength(1);
    server.answer = { type: "refused", code: "finished", reason: "over", close: 4411 };
    await farewells().say();
    expect(farewells().kept).toEqual([]);
  });
});

describe("what a page does not do", () => {
  test("declines with a spent budget, in words without figures", async () => {
    session = begin({ choice: { budget: { ...choice.budget, limit: 0.01 } } });
    await session.start();
    server.now.ask(1);
    await until(() => server.now.frames.length);
    const [frame] = server.now.frames;
    expect(frame![3]).toBe(0);
    expect(new TextDecoder().decode(frame!.subarray(8, -28))).toBe("the participant's budget does not allow it");
    await until(() => session.state === "declined");
    await until(() => heard("declined").length);
    expect(await session.ledger()).toHaveLength(0);
  });

  test("answers a plan that it has not agreed to", async () => {
    await session.start();
    server.now.ask(99);
    await until(() => server.now.frames.length);
    expect(new TextDecoder().decode(server.now.frames[0]!.subarray(8, -4))).toBe("the plan was not agreed to");
    expect(heard("refused")).toMatchObject([{ final: false }]);
    expect(session.state).toBe("waiting");
  });

  test.each([
    ["token", 4401, /ask for another one/], ["terms", 4409, /read them again/], ["full", 4410, /try again later/],
    ["address", 4412, /from your network address/],
    ["replaced", 4408, /this page has stopped$/], ["freed", 4414, /freed your place: ask them, or start again later$/],
    ["token", 4401, /the server says: so it is/], // which has several causes
  ])("goes on after the refusal %s", async (code, close, words) => {
    server.answer = { type: "refused", code, reason: "so it is", close };
    await expect(session.start()).rejects.toThrow(words);
    expect(session.state).toBe("failed");
    expect(heard("refused")).toMatchObject([{ final: true }]);
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(server.sockets).toHaveLength(1);
  });

  test("gives up where the server is busy or restarts", async () => {
    server.answer = { type: "refused", code: "busy", reason: "too many", retry: 2, close: 4429 };
    const joined = session.start();
    await until(() => heard("offline").length);
    expect(heard("offline")[0]).toMatchObject({ retryInSeconds: 2, reason: "too many" });
    server.answer = new Server().answer;
    await joined;
    expect(session.state).toBe("waiting");
  });

  test("begins with other terms than those that were shown", async () => {
    session = begin({ task: { ...task, rounds: { ...task.rounds, count: 5 } } });
    await expect(session.start()).rejects.toThrow(/have changed since you read them/);
    session = begin({ task: undefined });
    await expect(session.start()).rejects.toThrow(/have changed since you read them/);
    expect(server.sockets).toHaveLength(0);
    const same = begin({ task: structuredClone(task) });
    await same.start();
    expect(same.state).toBe("waiting");
    await same.leave();
  });

  test.each([
    ["never answers", (_: unknown, { signal }: RequestInit) => new Promise((_, reject) => signal!.addEventListener("abort", () => reject(signal!.reason))), /^nothing came for 20 seconds: .*try again$/],
    ["is not there, but a network's own page", async () => new Response("<html>Sign in</html>"), /not the server of this page: perhaps the network asks you to sign in/],
    ["has no time", async () => new Response("{}", { status: 503 }), /^the server answered 503: try again in a moment$/],
    ["has no such federation", async () => new Response("{}", { status: 404 }), /no federation called webfed-digits/],
  ])("waits for ever where the server %s", async (_, fetch, words) => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    session = begin({}, { fetch: fetch as typeof globalThis.fetch });
    const end = session.start().then(() => "joined", (error: Error) => error.message);
    await vi.advanceTimersByTimeAsync(20_000);
    expect(await end).toMatch(words);
    expect(heard("error")).toMatchObject([{ message: expect.stringMatching(words), final: true }]);
    vi.useRealTimers();
  });

  test("starts without a server, and says why", async () => {
    const lost = begin({}, { fetch: async () => { throw new TypeError("no network"); } });
    await expect(lost.start()).rejects.toThrow(/cannot be reached/);
    expect(lost.state).toBe("failed");
    expect(heard("error")).toMatchObject([{ final: true }]);
  });
});
