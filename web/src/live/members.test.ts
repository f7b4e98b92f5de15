import { expect, it } from "vitest";
import type { MemberActivity, MemberReason, Spent } from "../ui/api.ts";
import { newest, presenceWords, reasonWords, reportWords, spentWords, termsWords, troubleWords, waitingWords } from "./members.ts";

const spent: Spent = { epsilon: 733.4975, delta: 1e-5, claimed: 1300, adjacency: "client", adversary: "server" };
const declined = (first: number, last: number): MemberReason => ({ first, last, what: "declined", reason: "the budget is spent" });

it("says whether a member is there, and nothing to those who may not know", () => {
  expect(presenceWords({ present: false, why: "it cannot be reached" }, true)).toBe("away: it cannot be reached");
  expect(presenceWords({ present: true, why: "" }, true)).toBe("its answer is still to come");
  expect(presenceWords({ present: true, why: "" }, false)).toBe("here");
  expect(presenceWords({}, false)).toBe("");
});

it("counts reports beside the rounds that asked for them, where that is shown", () => {
  expect(reportWords({ reports: 2, last_round: 5, asked: 5 })).toBe("2 of 5 reports, the last in round 5");
  expect(reportWords({ reports: 1, last_round: 3 })).toBe("1 report, the last in round 3");
  expect(reportWords({ reports: 0, last_round: 0, asked: 2 })).toBe("no report in 2 rounds");
  expect(reportWords({ reports: 0, last_round: 0 })).toBe("no report yet");
  expect(troubleWords({ declined: 2, refused: 0, missing: 1, late: 3 })).toBe("declined 2, missing 1, late 3");
  expect(troubleWords({})).toBe("");
});

it("rounds what is spent up, and never shows it without its terms", () => {
  expect(spentWords(spent)).toBe("epsilon 734 spent");
  expect(spentWords({ ...spent, epsilon: "infinite" })).toBe("epsilon infinite spent");
  for (const part of ["everything that a member sends".replace("member", "participant"), "the server", "delta 1e-5", "proven"])
    expect(termsWords(spent)).toContain(part);
});

it("names whom the run waits for to the operator alone", () => {
  const waiting = { step: "report", round: 3, since: 0, answers: 2, members: ["north", "south"] };
  const summary = { state: "training", clients: 3 } as const;
  expect(waitingWords(summary, { role: "operator", waiting, members: [] })).toBe("Round 3 waits for north and south.");
  expect(waitingWords(summary, { role: "member", waiting: { ...waiting, members: undefined as never }, members: [] })).toBe("Round 3 waits for 2 answers.");
  expect(waitingWords(summary, { role: "reader", waiting: null, members: null })).toContain("3 members");
  expect(waitingWords({ ...summary, state: "finished" }, { role: "operator", waiting, members: [] })).toBe("");
});

it("lists reasons with the newest first, and rounds in a row as one", () => {
  const members = [
    { name: "north", reasons: [declined(1, 2), declined(7, 9)] },
    { name: "south", reasons: [{ ...declined(8, 8), what: "missing" as const }] },
    { name: "west" },
  ] as MemberActivity[];
  expect(newest(members).map(([name, reason]) => `${name} ${reasonWords(reason)}`)).toEqual([
    "north rounds 7 to 9, declined", "south round 8, no answer", "north rounds 1 to 2, declined",
  ]);
  expect(reasonWords(declined(0, 0))).toBe("before the first round, declined");
});
