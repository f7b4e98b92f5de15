import { describe, expect, it } from "vitest";
import type { Summary } from "./api.ts";
import { absenceWords, full, fullWords, listOf, protectionWords, stateWords } from "./front.ts";

describe("a federation in one line", () => {
  const budget = { limit: 4, delta: 1e-5, basis: "proven" as const, adjacency: "record-add-remove", adversary: "server" };

  it("never shows an epsilon without its change, adversary, basis and delta", () => {
    expect(protectionWords({ budget })).toBe(
      "Protection: at most epsilon 4 (proven, for one of your examples added or removed, against the server, at delta 1e-5). Moderate protection.",
    );
    expect(protectionWords({ budget: { ...budget, basis: "claimed", adjacency: "client", delta: 0 } })).toBe(
      "Protection: at most epsilon 4 (claimed, for everything you send, against the server, at delta 0). The claim is not proven.",
    );
  });

  it("that is over says why, and does not count rounds that were not held", () => {
    const one = { state: "finished", round: 3, rounds: 12, participants: 0, quorum: 1 } as Summary;
    const why = "after round 3, 0 of 5 clients have budget left";
    expect(stateWords({ ...one, why })).toBe("After round 3, 0 of 5 clients have budget left.");
    expect(stateWords({ ...one, round: 12, why: "all 12 rounds are done" })).toBe("All 12 rounds are done.");
    expect(stateWords({ ...one, why: "" })).toBe("3 of 12 rounds are done.");
  });

  it("is open only while a place is free", () => {
    const one = { state: "training", free: 1, by_invitation: false } as Summary;
    expect([listOf(one), full(one)]).toEqual(["Open to join", false]);
    expect([listOf({ ...one, free: 0 }), full({ ...one, free: 0 })]).toEqual(["Full", true]);
    expect(listOf({ ...one, by_invitation: true })).toBe("By invitation");
    const invited = { ...one, by_invitation: true, free: 0 };
    expect([listOf(invited), full(invited)]).toEqual(["By invitation", true]);
    expect([listOf({ ...one, state: "finished", free: 0 }), full({ ...one, state: "failed", free: 0 })]).toEqual(["Over", false]);
  });

  it("says how long a place is kept", () => {
    expect(absenceWords({ absence: 600 })).toContain("10 minutes");
    expect(fullWords({ absence: 600 })).toContain("10 minutes");
    expect(absenceWords({ absence: null })).not.toContain("somebody else");
  });
});
