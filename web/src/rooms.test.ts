import { readFileSync, readdirSync } from "node:fs";
import { expect, test } from "vitest";

/** From the bottom to the top: a room knows those before it, and no other (web/README.md). */
const ROOMS = ["wire", "bits", "learning", "privacy", "workers", "session", "ui", "live"];
const here = new URL(".", import.meta.url);

const files = (room: string): string[] =>
  readdirSync(new URL(room, here)).filter((name) => name.endsWith(".ts") && !name.endsWith(".test.ts"));

/** Which rooms a file imports from, be it values or types. */
function imported(room: string, file: string): string[] {
  const source = readFileSync(new URL(`${room}/${file}`, here), "utf8");
  return [...source.matchAll(/(?:from|import|new URL\()\s*\(?"\.\.\/(\w+)\//g)].map(([, other]) => other!);
}

test.each(ROOMS)("%s knows only rooms below it", (room) => {
  const below = ROOMS.slice(0, ROOMS.indexOf(room) + 1);
  const wrong = files(room).flatMap((file) =>
    imported(room, file).filter((other) => !below.includes(other)).map((other) => `${room}/${file} imports from ${other}`));
  expect(wrong).toEqual([]);
});

test("every room has its place", () => {
  const found = readdirSync(here, { withFileTypes: true }).filter((entry) => entry.isDirectory()).map(({ name }) => name);
  expect(found.sort()).toEqual([...ROOMS].sort());
});
