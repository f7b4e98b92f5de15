import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ASKING } from "./api.ts";
import { refresh } from "./refreshing.ts";

let answers: (() => Promise<number[]>)[] = [];
let asked = 0;
let heard: number[][] = [];
let stop: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  [answers, asked, heard] = [[], 0, []];
  const ask = (): Promise<number[]> => {
    asked += 1;
    return answers.shift()!();
  };
  stop = refresh([1], ask, (now) => heard.push(now));
});
afterEach(() => {
  stop();
  vi.useRealTimers();
});

const passes = (): Promise<unknown> => vi.advanceTimersByTimeAsync(1000 * ASKING);

test("what has changed is handed on, and what has not is not", async () => {
  answers = [async () => [1], async () => [2], async () => [2]];
  for (let k = 0; k < 3; k += 1) await passes();
  expect([asked, heard]).toEqual([3, [[2]]]);
});

test("a question that fails is asked again", async () => {
  answers = [() => Promise.reject(new Error("no network")), async () => [2]];
  await passes();
  await passes();
  expect(heard).toEqual([[2]]);
});

test("nothing is asked or handed on after the end", async () => {
  let answer = (_: number[]): void => undefined;
  answers = [() => new Promise((resolve) => (answer = resolve))];
  await passes();
  stop();
  answer([2]);
  await passes();
  expect([asked, heard]).toEqual([1, []]);
});
