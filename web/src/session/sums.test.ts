import "fake-indexeddb/auto";
import { beforeEach, describe, expect, test, vi } from "vitest";
import { signed, tasks, toHex } from "../golden.ts";
import { TrainingRoom } from "../learning/room.ts";
import { Ledger } from "../privacy/ledger.ts";
import { PrivacyRoom } from "../privacy/privacy.ts";
import { canonical } from "../wire/frames.ts";
import { DataRoom } from "../workers/data.ts";
import { Marker } from "./marker.ts";
import { type Parts, openSession } from "./open.ts";
import type { Rooms } from "./rooms.ts";
import type { Session, SessionEvent } from "./session.ts";

/** A session over both stages of a federation that sums: second moments, then gradients. */
const task = tasks["proven-digits"];
const { size } = task.model;
const { maps } = task.training;
const drawings = Array.from({ length: 12 }, (_, i) => ({
  label: i % 10, width: 8, height: 8, pixels: Uint8Array.from({ length: 64 }, (_, p) => ((p * (i + 3)) % 17) * 15),
}));
const answers: Uint8Array[] = [];
let line: { onopen(): void; onmessage(event: { data: unknown }): void } & Record<string, unknown>;
let events: SessionEvent[];
let count = 0;

/** A server that welcomes, and whose requests the test makes. */
const socket = ((): WebSocket => {
  line = {
    readyState: 1,
    send: (data: string | Uint8Array) => {
      if (typeof data !== "string") answers.push(data.slice());
      else if (JSON.parse(data).type === "hello") {
        const welcome = { type: "welcome", protocol: 2, client: 1, known: false, status: { round: 0, participants: 1, needed: 1 } };
        queueMicrotask(() => line.onmessage({ data: JSON.stringify(welcome) }));
      }
    },
    close: () => {},
  } as unknown as typeof line;
  queueMicrotask(() => line.onopen());
  return line as unknown as WebSocket;
}) as unknown as Parts["socket"];

function ask(round: number): void {
  const arrays = round === 1 ? {} : { centre: [maps], left: [maps, maps], parameters: [size] };
  const header = new TextEncoder().encode(canonical({ arrays, federation: task.federation, round, settings: {} }));
  const left = Array.from({ length: maps * maps }, (_, i) => (i % (maps + 1) ? 0 : 65536));
  const values = round === 1 ? [] : [...Array<number>(maps).fill(0), ...left, ...Array<number>(size).fill(0)];
  const plan = new Uint8Array(8 + header.length + 4 * values.length);
  plan.set([0x53, 0x50, 2, 0]);
  const view = new DataView(plan.buffer);
  view.setUint32(4, header.length, true);
  plan.set(header, 8);
  values.forEach((value, i) => view.setFloat32(8 + header.length + 4 * i, value, true));
  const message = signed(plan, { federation: task.federation, round, terms: task.terms });
  line.onmessage({ data: Uint8Array.from([0x53, 0x51, 2, 3, 6, 0, 0, 0, ...new TextEncoder().encode("report"), ...message]).buffer });
}

/** The real rooms, without workers around them; `train` in the place of the training room's own. */
function rooms(train?: (job: unknown) => Promise<never>): Parts["rooms"] {
  return (onStep) => {
    const ledger = Ledger.open(`summing ${count}`).then((opened) => new PrivacyRoom(opened));
    const away = (room: unknown, changed: Record<string, unknown> = {}) =>
      new Proxy({}, { get: (_, key: string) => changed[key] ?? (async (...given: any[]) => (await room as any)[key](...given)) });
    return { data: away(new DataRoom()), training: away(new TrainingRoom(onStep), train ? { train } : {}), privacy: away(ledger), close: () => {} } as unknown as Rooms;
  };
}

async function begun(train?: (job: unknown) => Promise<never>, model?: Float32Array<ArrayBuffer>, own = drawings): Promise<Session> {
  const served = (async (address: unknown) => {
    if (String(address).endsWith("/task")) return new Response(JSON.stringify(task));
    return model ? new Response(model, { headers: { "X-Sordino-Round": "3" } }) : new Response("", { status: 503 });
  }) as unknown as typeof fetch;
  const budget = { limit: 1, delta: 1e-5, basis: "proven" as const, adjacency: "record-add-remove" as const };
  const session = openSession(
    { server: "http://here", federation: "proven-digits", data: { kind: "drawings", drawings: own }, choice: { budget }, task: structuredClone(task) },
    { rooms: rooms(train), fetch: served, socket, farewells: { keep: () => {}, drop: () => {} } as unknown as Parts["farewells"], marker: new Marker(null), pace: 0.001 },
  );
  session.subscribe((event) => events.push(event));
  await session.start();
  return session;
}

const answered = (many: number) => vi.waitFor(() => expect(answers).toHaveLength(many), { timeout: 15_000, interval: 5 });
const heard = (type: SessionEvent["type"]) => events.filter((event) => event.type === type) as any[];
const bytes = task.strengths[0].mechanism.stages.map(({ values, modulus }: any) => 12 + 24 + values * Math.ceil(modulus / 8));

beforeEach(() => {
  count += 1;
  answers.length = 0;
  events = [];
});

describe("a session over both stages", () => {
  test("sends second moments once and gradients after, within the budget, and says what it does", async () => {
    const session = await begun();
    for (let round = 1; round <= 4; round += 1) {
      ask(round);
      await answered(round);
    }
    expect(answers.map(({ length }) => length)).toEqual([bytes[0], bytes[1], bytes[1], bytes[1]]);
    expect(answers.every((answer) => answer[3] === 1)).toBe(true);
    const lines = await session.ledger();
    expect(lines.map(({ what }) => what)).toEqual([["second moments of features"], ...Array(3).fill(["gradient of a linear head"])]);
    const stated: number[] = task.strengths[0].spending[0].epsilon;
    lines.forEach(({ spentAfter }, k) => expect(spentAfter).toBeCloseTo(stated[k]!, 6));
    expect(heard("progress").filter(({ doing, round }) => doing === "features" && round === 1)).toHaveLength(12);
    expect(heard("progress").filter(({ doing, round }) => doing === "features" && round > 2)).toHaveLength(0);
    expect(heard("trained").map(({ loss }) => loss?.toFixed(3))).toEqual([undefined, "2.303", "2.303", "2.303"]);
    await session.leave();
  });

  test("sends as many bytes without a record, of noise alone", async () => {
    const session = await begun(undefined, undefined, []);
    for (let round = 1; round <= 2; round += 1) {
      ask(round);
      await answered(round);
    }
    expect(answers.map((answer) => [answer[3], answer.length])).toEqual([[1, bytes[0]], [1, bytes[1]]]);
    await vi.waitFor(() => expect(heard("noise")).toHaveLength(2));
    for (const { clear, sent } of heard("noise")) {
      expect(clear.every((value: number) => value === 0)).toBe(true);
      expect(sent.some((value: number) => value !== 0)).toBe(true);
    }
    await session.leave();
  });

  test("answers a round again with the same bytes", async () => {
    const session = await begun();
    ask(1);
    await answered(1);
    ask(1);
    await answered(2);
    expect(toHex(answers[1]!)).toBe(toHex(answers[0]!));
    expect(await session.ledger()).toHaveLength(1);
    await session.leave();
  });

  test("that cannot train ends its rounds without a report, counts them, and says why to the person alone", async () => {
    const session = await begun(async () => {
      throw new RangeError("out of memory");
    });
    ask(1);
    await answered(1);
    ask(2);
    await answered(2);
    expect(answers.map((answer) => [answer[3], toHex(answer.slice(-24, -20))])).toEqual([[0, "53520202"], [0, "53520202"]]);
    expect(await session.ledger()).toHaveLength(2);
    expect(heard("error")).toHaveLength(2);
    await session.leave();
  });

  test("tries the model of its last plan, or a newer one of the server", async () => {
    const picture = { width: 8, height: 8, pixels: drawings[0]!.pixels };
    const session = await begun();
    ask(1);
    await answered(1);
    await expect(session.predict(picture)).rejects.toThrow(/no model yet/);
    ask(2);
    await answered(2);
    expect((await session.predict(picture)).probabilities[0]).toBeCloseTo(0.1, 9);
    await session.leave();
    const model = new Float32Array(size + maps + maps * maps);
    model[size - 1] = 100;
    model[size + maps] = 1;
    const other = await begun(undefined, model);
    expect((await other.predict(picture)).best).toBe(9);
    await other.leave();
  });
});
