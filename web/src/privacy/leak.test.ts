import { afterEach, describe, expect, test, vi } from "vitest";
import { Keystream } from "../bits/keystream.ts";
import { fromHex, golden, tasks } from "../golden.ts";
import { readTask } from "../wire/task.ts";
import { type Leak, LeakRoom, type Reports, hasClosedForm } from "./leak.ts";

afterEach(() => vi.unstubAllGlobals());

/** Other keys for each report, and the same in every run. */
function keys(): { fresh: () => Promise<Keystream>; count: () => number } {
  let count = 0;
  return { fresh: () => Keystream.withKey(fromHex(golden.key_hex), 0, (count += 1)), count: () => count };
}

/** A picture of two blots of ink, other ones for each number, as records are normalised: from 0 to 1. */
function drawing(number: number): Float32Array {
  const places = [[number % 8, (3 * number) % 7], [(5 * number) % 7, number % 6]] as const;
  const ink = (x: number, y: number) => places.reduce((sum, [a, b]) => sum + Math.exp(-((x - a) ** 2 + (y - b) ** 2) / 2), 0);
  return Float32Array.from({ length: 64 }, (_, j) => Math.min(1, ink(j % 8, Math.floor(j / 8))));
}

const PUBLIC = Array.from({ length: 60 }, (_, i) => i).filter((i) => i % 12);
const SECRET = Array.from({ length: 60 }, (_, i) => i).filter((i) => i % 12 === 0);
const pixels = Float32Array.from(PUBLIC.flatMap((i) => [...drawing(i)]));
const labels = Int32Array.from(PUBLIC, (i) => i % 10);

async function opened(federation: string, fresh = keys().fresh): Promise<LeakRoom> {
  const room = new LeakRoom(fresh);
  await room.open(structuredClone(tasks[federation]), pixels, labels);
  return room;
}

/** Reports of all rounds, at epsilon 1: proven for one record added or removed, delta 1e-5. */
const EPSILON_1: Record<string, Reports> = {
  "proven-digits": { first: 1, rounds: 4, noise: null },
  "webfed-digits": { first: 1, rounds: 20, noise: 8.6787 },
};

const distance = (a: Float32Array, b: Float32Array): number => Math.sqrt(a.reduce((sum, value, j) => sum + (value - b[j]!) ** 2, 0));

describe.each(Object.keys(EPSILON_1))("of %s", (federation) => {
  test("a picture in a report without noise is identified, and at epsilon 1 it is not", async () => {
    const room = await opened(federation);
    const found: Leak[] = [];
    for (const i of SECRET) found.push(await room.attack(drawing(i), EPSILON_1[federation]!));
    expect(found.map(({ bare }) => bare!.isNearest)).toEqual(SECRET.map(() => true));
    // each is picked with probability 0.03 or so: two of five would be in one of 100 choices of keys
    expect(found.filter(({ sent }) => sent!.isNearest).length).toBeLessThan(2);
    SECRET.forEach((i, k) => {
      const { bare, sent } = found[k]!;
      expect(distance(sent!.record, drawing(i))).toBeGreaterThan(1.5 * distance(bare!.record, drawing(i)));
    });
  });
});

test("pixels that a linear model sees itself are read exactly, up to the steps of the grid", async () => {
  const room = await opened("webfed-digits");
  for (const i of SECRET) {
    const { bare } = await room.attack(drawing(i), EPSILON_1["webfed-digits"]!);
    drawing(i).forEach((value, j) => expect(Math.abs(bare!.record[j]! - value)).toBeLessThan(0.01));
  }
});

describe("the noise is that of the report, with a key for each", () => {
  // means over 1450 and 650 values: 10 % are more than 3.5 deviations of the estimate
  const deviation = ({ bare, sent }: { bare: Float64Array; sent: Float64Array }): number =>
    Math.sqrt(sent.reduce((sum, value, j) => sum + (value - bare[j]!) ** 2, 0) / sent.length);

  test("in sums", async () => {
    const { fresh, count } = keys();
    const room = await opened("proven-digits", fresh);
    const found = deviation(await room.gradients(drawing(0), 0, [2, 3, 4], null));
    expect(count()).toBe(3);
    expect(found / (2 ** 16 / Math.sqrt(3))).toBeGreaterThan(0.9);
    expect(found / (2 ** 16 / Math.sqrt(3))).toBeLessThan(1.1);
  });

  test("in private training, at the noise that was chosen", async () => {
    const { fresh, count } = keys();
    const room = await opened("webfed-digits", fresh);
    const { training } = readTask(structuredClone(tasks["webfed-digits"]));
    if (training.kind !== "private") throw new Error(training.kind);
    const { clip, expected_batch, optimiser, steps } = training;
    for (const noise of [training.noise, 16.341]) {
      const before = count();
      const found = deviation(await room.gradients(drawing(0), 0, [1, 2, 3, 4], noise));
      expect(count() - before).toBe(4);
      const expected = (noise * clip * optimiser.lr * Math.sqrt(steps)) / expected_batch / Math.sqrt(4);
      expect(found / expected).toBeGreaterThan(0.9);
      expect(found / expected).toBeLessThan(1.1);
    }
  });
});

test("attacks that are asked for at the same time do not disturb each other", async () => {
  const room = await opened("webfed-digits");
  const both = await Promise.all(SECRET.map((i) => room.attack(drawing(i), EPSILON_1["webfed-digits"]!)));
  SECRET.forEach((i, k) => expect(distance(both[k]!.bare!.record, drawing(i))).toBeLessThan(0.05));
});

test("a budget that pays for no gradient leaves the picture without noise alone", async () => {
  const room = await opened("proven-digits");
  const found = await room.attack(drawing(0), { first: 1, rounds: 1, noise: null });
  expect(found).toMatchObject({ sent: null, gradients: 0, bare: { isNearest: true } });
});

test("nothing is sent and nothing is written down", async () => {
  const used: string[] = [];
  const trap = (name: string) => new Proxy(class {}, { apply: () => used.push(name), construct: () => (used.push(name), {}), get: () => used.push(name) });
  for (const name of ["fetch", "WebSocket", "XMLHttpRequest", "EventSource", "navigator", "indexedDB", "localStorage", "sessionStorage"]) {
    vi.stubGlobal(name, trap(name));
  }
  for (const [federation, reports] of Object.entries(EPSILON_1)) await (await opened(federation)).attack(drawing(0), reports);
  expect(used).toEqual([]);
});

test("other models have no closed form", async () => {
  const kinds = Object.fromEntries(Object.entries(tasks).map(([name, task]) => [name, hasClosedForm(readTask(structuredClone(task)))]));
  expect(kinds).toMatchObject({ "proven-digits": true, "webfed-digits": true, "two-point-digits": false, "fedavg-digits": false });
  const table = structuredClone(tasks["webfed-digits"]);
  table.input.kind = "features";
  expect(hasClosedForm(table)).toBe(false);
  await expect(new LeakRoom().open(tasks["fedavg-digits"], pixels, labels)).rejects.toThrow("closed form");
});
