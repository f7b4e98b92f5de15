import { expect, test } from "vitest";
import { tasks } from "../golden.ts";
import { openLeaks } from "./leak.ts";
import type { leakRoom } from "./rooms.ts";

const examples = Array.from({ length: 12 }, (_, i) => ({ values: new Float32Array(64).fill(i), label: i % 10 }));

/** A worker that writes down what it gets, and gives back what it is asked about. */
function worker(): { room: typeof leakRoom; learnt: number[]; attacked: number[] } {
  const [learnt, attacked]: [number[], number[]] = [[], []];
  const remote = {
    open: async (_: unknown, x: Float32Array) => void learnt.push(...x.filter((_, j) => j % 64 === 0)),
    attack: async (record: Float32Array) => (attacked.push(record[0]!), { bare: { record, isNearest: true }, sent: null, gradients: 0 }),
  };
  return { room: (() => ({ remote, close: () => {} })) as unknown as typeof leakRoom, learnt, attacked };
}

test("the picture that is attacked is in nothing that is learnt from", async () => {
  const { room, learnt, attacked } = worker();
  const leaks = openLeaks(structuredClone(tasks["webfed-digits"]), Promise.resolve(examples), room)!;
  const reports = { first: 1, rounds: 20, noise: null };
  const found = await leaks.attack(null, reports);
  await leaks.attack({ width: 8, height: 8, pixels: new Uint8Array(64).fill(255) }, reports);
  expect(learnt).toHaveLength(11); // once
  expect(learnt).not.toContain(attacked[0]);
  expect(attacked[1]).toBe(1);
  expect(found.bare!.values).toEqual(examples[4]!.values); // raw again
  expect(found.candidates).toBe(12);
});

test("federations without a closed form have nothing to show", () => {
  expect(openLeaks(structuredClone(tasks["two-point-digits"]), Promise.resolve(examples), worker().room)).toBeNull();
  expect(openLeaks({ protocol: 1 }, Promise.resolve(examples), worker().room)).toBeNull();
});
