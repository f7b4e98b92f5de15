import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { Summary } from "./api.ts";
import { absenceWords, badgesOf, full, fullWords, LEAD, listOf, placeWords, protectionWords, purpose, stateWords, TITLE } from "./front.ts";

describe("a federation in one line", () => {
  const budget = { limit: 4, delta: 1e-5, basis: "proven" as const, adjacency: "record-add-remove", adversary: "server" };

  it("never shows an epsilon without its change, adversary, basis and delta", () => {
    expect(protectionWords({ budget })).toBe(
      "Protection: at most epsilon 4 (proven, for one of your examples added or removed, against the server, at delta 1e-5). Limited protection.",
    );
    expect(protectionWords({ budget: { ...budget, basis: "claimed", adjacency: "client", delta: 0 } })).toBe(
      "Protection: at most epsilon 4 (claimed, for everything you send, against the server, at delta 0). The claim is not proven.",
    );
  });

  it("is its makers' first thought, without what the operator changed", () => {
    expect(purpose("a model learns digits; noise hides them (as shipped; changed here: rounds.quorum)")).toBe("A model learns digits.");
    expect(purpose("one thought")).toBe("One thought.");
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

  it("is said to be full beside its state", () => {
    const words = (one: Pick<Summary, "state" | "free">): string[] => badgesOf(one).map(([text]) => text);
    expect(words({ state: "training", free: 0 })).toEqual(["training now", "full"]);
    expect(words({ state: "training", free: 1 })).toEqual(["training now"]);
    expect(words({ state: "finished", free: 0 })).toEqual(["finished"]);
  });

  it("begins with enough participants, and goes on with them once it has begun", () => {
    const one = { state: "waiting", round: 0, rounds: 400, participants: 2, quorum: 3 } as Summary;
    expect(stateWords(one)).toBe("2 participants here now; it begins with 3.");
    expect(stateWords({ ...one, round: 36 })).toBe("2 participants here now; it goes on with 3.");
    expect(stateWords({ ...one, round: 36, participants: 3 })).toContain("it goes on in a moment");
  });

  it("keeps a place only for a page that has one", () => {
    for (const state of ["new", "preparing", "ended", "left", "failed"] as const) expect(placeWords(state, { absence: 600 })).toBe("");
    for (const state of ["waiting", "training", "paused", "offline", "declined"] as const)
      expect(placeWords(state, { absence: 600 })).toContain("closed or has no connection");
  });

  it("says how long a place is kept", () => {
    expect(absenceWords({ absence: 600 })).toContain("10 minutes");
    expect(fullWords({ absence: 600 })).toContain("10 minutes");
    expect(absenceWords({ absence: null })).not.toContain("somebody else");
  });
});

describe("a page whose script has not run yet", () => {
  const text = (name: string): string => readFileSync(new URL(`../../${name}`, import.meta.url), "utf8").replace(/\s+/g, " ");

  it("has the words of the first view, and says that the server is being asked", () => {
    for (const words of [TITLE, LEAD, "Asking the server…"]) expect(text("index.html")).toContain(words);
    expect(text("live.html")).toContain("Asking the server…");
  });
});
