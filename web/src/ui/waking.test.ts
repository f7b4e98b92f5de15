import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { keepAwake } from "./waking.ts";

let held = 0;
/** the browser's answers that are still to come */
let answers: (() => void)[] = [];

beforeEach(() => {
  [held, answers] = [0, []];
  const request = (): Promise<{ release: () => Promise<void> }> => new Promise((resolve) => answers.push(() => {
    held += 1;
    let mine = 1;
    resolve({ release: async () => { held -= mine; mine = 0; } });
  }));
  vi.stubGlobal("navigator", { wakeLock: { request } });
  vi.stubGlobal("document", Object.assign(new EventTarget(), { visibilityState: "visible" }));
});
afterEach(() => vi.unstubAllGlobals());

const settled = () => new Promise((resolve) => setTimeout(resolve));

test("the screen may sleep when the part is over, and is not woken by the page's coming back", async () => {
  const sleep = keepAwake();
  answers.forEach((answer) => answer());
  await settled();
  expect(held).toBe(1);
  sleep();
  document.dispatchEvent(new Event("visibilitychange"));
  await settled();
  expect([held, answers.length]).toEqual([0, 1]);
});

test("nor is it kept on by an answer of the browser that comes after the end", async () => {
  keepAwake()();
  answers.forEach((answer) => answer());
  await settled();
  expect(held).toBe(0);
});
