import { describe, expect, test } from "vitest";
import { type Attendance, invitation, isOnThisMachine, lobbyWords } from "./lobby.ts";
import { qrPath } from "./qr.ts";

const here = (change: Partial<Attendance> = {}): Attendance => ({ connected: 3, needed: 4, places: 5, startsIn: null, ...change });

describe("a lobby", () => {
  test("counts whom it waits for", () => {
    const [head, rest] = lobbyWords(here());
    expect(head).toMatch(/\b1\b/);
    expect(rest).toMatch(/^3 of 5\b.*\b4\b/);
    expect(lobbyWords(here({ connected: 1 }))[0]).toMatch(/\b3\b/);
  });

  test("counts down where the server does, and otherwise begins in a moment once all are here", () => {
    expect(lobbyWords(here({ connected: 4, startsIn: 8.2 }))[0]).toContain("8 seconds");
    expect(lobbyWords(here({ connected: 4, startsIn: 0 }))[0]).not.toMatch(/\d/);
    expect(lobbyWords(here({ connected: 4 }))[0]).not.toMatch(/\d/);
  });
});

describe("the link of an invitation", () => {
  const at = (address: string): Location => new URL(address) as unknown as Location;
  const token = "https://here.example/#federation=digits&token=abc&key=def";

  test("is the federation's address where everybody may come", () => {
    const open = { name: "two words", by_invitation: false };
    expect(invitation(open, at("https://here.example/?again#/two%20words?token=x"))).toBe("https://here.example/#/two%20words");
  });

  test("is the one that this page was opened with where one admits all", () => {
    const shared = { name: "digits", by_invitation: true, shared_link: true };
    expect(invitation(shared, at(token))).toBe(token);
    expect(invitation(shared, at("https://here.example/#/digits"))).toBeNull();
  });

  test("is nobody else's where it is personal", () => {
    expect(invitation({ name: "digits", by_invitation: true }, at(token))).toBeNull();
    expect(invitation({ name: "digits", by_invitation: true, shared_link: false }, at(token))).toBeNull();
  });

  test("leads nowhere else where it names this machine", () => {
    expect(["localhost", "127.0.0.1", "[::1]"].every(isOnThisMachine)).toBe(true);
    expect(["192.168.0.7", "localhost.example", "here.example"].some(isOnThisMachine)).toBe(false);
  });
});

test("a QR code has its three marks, and a margin of four modules", () => {
  const { size, path } = qrPath("https://here.example/#/digits");
  const dark = new Set(path.match(/M\d+ \d+/g));
  const mark = [[4, 4], [size - 11, 4], [4, size - 11]];
  for (const [x, y] of mark as [number, number][]) {
    for (const [dx, dy, on] of [[0, 0, true], [6, 6, true], [3, 3, true], [1, 1, false]] as [number, number, boolean][]) {
      expect(dark.has(`M${x + dx} ${y + dy}`)).toBe(on);
    }
  }
  for (let k = 0; k < size; k += 1) for (const edge of [0, 3]) expect(dark.has(`M${k} ${edge}`) || dark.has(`M${edge} ${k}`)).toBe(false);
});
