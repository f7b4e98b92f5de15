import { expect, it } from "vitest";
import type { Live, RoundEntry } from "../ui/api.ts";
import { freeingWords, lateReports, refusedReports, startWords, waitingWords } from "./counts.ts";

const rounds = [{ round: 1, late: 1, refused: 2 }, { round: 2, late: 0, refused: 0 }] as RoundEntry[];
/** As the server tells it after these rounds, one more report being late in the open one. */
const live = { strays: { late: 2, duplicate: 5 }, refused: [{}, {}, {}] } as unknown as Live;

it("counts a late report once, also when its round is over", () => {
  expect(lateReports(rounds, live)).toBe(2);
  expect(lateReports(rounds, { ...live, strays: {} })).toBe(0);
  expect(refusedReports(rounds, live)).toBe(3);
  expect(refusedReports([...rounds, { round: 3, late: 0, refused: 250 } as RoundEntry], live)).toBe(252); // the list is of the newest
});

it("counts those of whole rounds where single participants are not shown", () => {
  expect([lateReports(rounds, null), refusedReports(rounds, null)]).toEqual([1, 2]);
});

it("says how many more are needed, and whom a round waits for", () => {
  const summary = { state: "waiting", participants: 2, quorum: 3 } as const;
  expect(waitingWords(summary, { waiting_for: [] })).toBe("1 more participant is needed.");
  expect(waitingWords({ ...summary, participants: 0 }, { waiting_for: [4] })).toBe(
    "This round waits for number 4. 3 more participants are needed.",
  );
  expect(waitingWords({ ...summary, participants: 3 }, { waiting_for: [] })).not.toContain("needed.");
  expect(waitingWords({ ...summary, state: "finished", participants: 0 }, { waiting_for: [] })).toBe("");
});

it("says who is told that a place is freed: those who are connected", () => {
  expect(freeingWords([3], 1)).toContain("Who is connected is told so");
  for (const clients of [[3], [3, 4]]) expect(freeingWords(clients, 0)).not.toContain("connected");
  expect(freeingWords([3, 4], 0)).toContain("The places of number 3 and number 4");
});

it("names the moment when the server was started, which does not stand still", () => {
  const now = new Date(2026, 0, 31, 14, 30).getTime();
  expect(startWords(1800, now)).toBe("14:00");
  expect(startWords(2 * 86_400, now)).toContain("29 Jan");
});
