import { createHash } from "node:crypto";
import "fake-indexeddb/auto";
import { expect, test } from "vitest";
import { Ledger } from "../privacy/ledger.ts";
import { recordOf } from "../privacy/record.ts";
import { canonical } from "../wire/frames.ts";
import { fileOf, groupsOf, when } from "./record_view.ts";

async function written() {
  const ledger = await Ledger.open("file of a record");
  for (const [federation, round] of [["a", 1], ["b", 1], ["a", 2]] as const) {
    const loss = { type: "Pure", epsilon: 0.5, count: 1 } as const;
    const releases = [{ what: "update", claimed: null, guarantees: [{ adversary: "server", adjacency: "client", loss }] }];
    const answer = Uint8Array.of(round);
    await ledger.record({ dataset: "own", federation, round, plan: "ab".repeat(32), releases, answer, time: 1000 }, { announced: null, order: null });
  }
  return recordOf(ledger).finally(() => ledger.close());
}

test("a record that was downloaded can be checked from its first line to its head, as the file says", async () => {
  const file = JSON.parse(fileOf(await written(), new Date(0)));
  let head = "0".repeat(64);
  for (const { index, dataset, federation, round, plan, releases, time, hash } of file.lines) {
    head = createHash("sha256").update(canonical([head, index, dataset, federation, round, plan, releases, time, hash])).digest("hex");
  }
  expect([file.lines.length, file.sound, file.head]).toEqual([3, true, head]);
});

test("a record is shown by federation, and a sample apart from one's own examples", () => {
  const line = (federation: string, dataset: string, round: number) => ({ federation, dataset, round }) as never;
  const lines = [line("a", "own", 1), line("b", "own", 1), line("a", "own", 2), line("a", "sample of a", 3)];
  expect(groupsOf(lines).map((group) => group.map(({ round }) => round))).toEqual([[1, 2], [1], [3]]);
});

test("the day stands beside the time where it is another one", () => {
  const now = new Date(2026, 4, 3, 12);
  expect(when(new Date(2026, 4, 3, 9, 5, 1).getTime(), now)).toBe("09:05:01");
  expect(when(new Date(2026, 4, 2, 9, 5, 1).getTime(), now)).toBe("02/05/2026, 09:05:01");
});
