import "fake-indexeddb/auto";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { tasks } from "../golden.ts";
import { Ledger } from "../privacy/ledger.ts";
import type { Detail } from "./api.ts";
import { Protection } from "./protection.ts";

/** As much of an element as the slider's view needs. */
class FakeElement {
  value = "";
  textContent = "";
  hidden = false;
  readonly dataset: Record<string, string> = {};
  readonly children: FakeElement[] = [];
  readonly classList = { toggle: () => false };
  readonly style = { setProperty: () => {} };
  readonly listeners: Record<string, () => void> = {};
  setAttribute(): void {}
  appendChild(child: FakeElement): void {
    this.children.push(child);
  }
  replaceChildren(...children: FakeElement[]): void {
    this.children.splice(0, Infinity, ...children);
  }
  addEventListener(name: string, listener: () => void): void {
    this.listeners[name] = listener;
  }
}

let made: Record<string, FakeElement[]> = {};
const make = (tag: string) => {
  const element = new FakeElement();
  (made[tag] ??= []).push(element);
  return element;
};
beforeEach(() => {
  made = {};
  vi.stubGlobal("Node", FakeElement);
  vi.stubGlobal("document", { createElement: make, createElementNS: (_: string, tag: string) => make(tag), createTextNode: () => new FakeElement() });
});
afterEach(() => {
  vi.unstubAllGlobals();
  indexedDB.deleteDatabase("sordino");
});

/** The view of somebody who agreed to a limit before, or to none; once it knows what was spent. */
async function viewAfter(agreed: number | null): Promise<{ view: Protection; slider: FakeElement }> {
  const task = structuredClone(tasks["webfed-digits"]);
  const { limit: _, adversary: __, ...terms } = task.budget;
  const ledger = await Ledger.open();
  if (agreed !== null) await ledger.keepFirstBudget(task.federation, { ...terms, limit: agreed });
  ledger.close();
  let told = 0;
  const view = new Protection({ task, history: [], round: 0, sample: true } as unknown as Detail, () => true, () => (told += 1), () => {});
  await vi.waitFor(() => expect(told).toBeGreaterThanOrEqual(2), { timeout: 15_000 });
  return { view, slider: made["input"]![0]! };
}

test("whoever comes back finds the limit that they agreed to, and others the federation's own", async () => {
  const usual = (await viewAfter(null)).view.choice!.budget.limit;
  made = {};
  const { view, slider } = await viewAfter(usual / 2);
  await vi.waitFor(() => expect(view.choice!.budget.limit).toBeLessThanOrEqual(usual / 2));
  slider.value = String(tasks["webfed-digits"].choices.length - 1);
  slider.listeners["input"]!();
  view.recount();
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(view.choice!.budget.limit).toBe(usual); // what a person sets stays
});

test("the reports that a position pays for are known once they are counted", async () => {
  const { view, slider } = await viewAfter(null);
  expect(view.reports).toEqual({ first: 1, rounds: 20, noise: 2.6473 });
  slider.value = "0";
  slider.listeners["input"]!();
  expect(view.reports).toBeNull();
  await vi.waitFor(() => expect(view.reports).toEqual({ first: 1, rounds: 20, noise: 16.341 }), { timeout: 15_000 });
});
