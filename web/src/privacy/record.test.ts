import "fake-indexeddb/auto";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { Ledger } from "./ledger.ts";
import { recordOf } from "./record.ts";

let ledger: Ledger;
let count = 0;
beforeEach(async () => {
  ledger = await Ledger.open(`record ${(count += 1)}`);
});
afterEach(() => ledger.close());

const loss = { type: "Pure", epsilon: 0.5, count: 1 } as const;
const budget = { limit: 4, delta: 0, basis: "proven", adjacency: "client" } as const;

async function told(federation: string, round: number, dataset = "own", adjacency = "client"): Promise<void> {
  const releases = [{ what: "update", claimed: null, guarantees: [{ adversary: "server", adjacency, loss }] }];
  const answer = Uint8Array.of(round, 2, 3);
  const plan = "ab".repeat(32);
  await ledger.record({ dataset, federation, round, plan, releases, answer, time: 1000 * round }, { announced: null, order: null });
}

describe("the record of a browser", () => {
  test("has every report of every federation; one's own examples add up, and a sample counts by itself", async () => {
    await told("a", 1);
    await told("b", 1, "sample of b");
    await told("b", 2, "sample of b");
    await told("c", 1);
    await ledger.mark(0, "received");
    const { lines, head, sound } = await recordOf(ledger);
    expect(lines.map(({ federation, round, epsilon, sent, bytes }) => [federation, round, epsilon, sent, bytes])).toEqual([
      ["a", 1, 0.5, "received", 3], ["b", 1, 0.5, "kept", 3], ["b", 2, 1, "kept", 3], ["c", 1, 1, "kept", 3],
    ]);
    expect([head, sound]).toEqual([lines[3]!.head, true]);
    expect(lines.some((line) => "answer" in line)).toBe(false);
  });

  test("is empty before anything has left", async () => {
    expect(await recordOf(ledger)).toEqual({ lines: [], head: null, sound: true });
  });

  test("stays in the terms of the first agreement", async () => {
    await told("a", 1);
    await ledger.keepFirstBudget("a", budget);
    await ledger.keepFirstBudget("a", { ...budget, limit: 1 });
    expect((await recordOf(ledger)).lines[0]!.terms).toEqual(budget);
  });

  test("of an earlier page, which kept no budget, is about a change that it has a guarantee for", async () => {
    await told("a", 1, "own", "record (add/remove)");
    expect((await recordOf(ledger)).lines[0]).toMatchObject({ epsilon: 0.5, terms: { adjacency: "record-add-remove" } });
  });

  test("can be read though an earlier page wrote down what cannot be counted: then nothing bounds it", async () => {
    await told("a", 1);
    const claimed = { epsilon: -9, delta: 0, formula: "", adjacency: "client", adversary: "server", covers: "release" } as const;
    const releases = [{ what: "update", claimed, guarantees: [{ adversary: "server", adjacency: "client", loss }] }];
    const entry = { dataset: "own", federation: "b", round: 1, plan: "ab".repeat(32), releases, answer: Uint8Array.of(1), time: 1 };
    await ledger.record(entry, { announced: null, order: null });
    await ledger.keepFirstBudget("b", { ...budget, basis: "claimed" });
    await told("a", 2);
    expect((await recordOf(ledger)).lines.map(({ epsilon }) => epsilon)).toEqual([0.5, null, 1.5]);
  });

  test("says where nothing bounds what was told", async () => {
    await told("a", 1, "own", "coordinate");
    await ledger.keepFirstBudget("a", budget);
    expect((await recordOf(ledger)).lines[0]!.epsilon).toBeNull();
  });
});
