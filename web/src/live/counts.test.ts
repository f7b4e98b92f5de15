import { expect, it } from "vitest";
import type { Live, RoundEntry } from "../ui/api.ts";
import { lateReports, refusedReports } from "./counts.ts";

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
