import { expect, test } from "vitest";
import { verdict } from "./leak_view.ts";

const guess = (isNearest: boolean) => ({ values: new Float32Array(), isNearest });
const leak = { bare: guess(true), sent: guess(false), gradients: 11, candidates: 300 };

test("what the attack picks is told with the number of pictures and of reports", () => {
  expect(verdict(leak, 12, false)).toMatch(/300.*yours.*11.*another/);
  expect(verdict({ ...leak, sent: guess(true) }, 12, false)).not.toContain("another");
  expect(verdict(leak, 12, true)).not.toContain("yours");
});

test("where the attack has nothing to read, that is told, and never as a success of the noise", () => {
  const cases = [
    verdict({ ...leak, sent: null, gradients: 0 }, 0, false),
    verdict({ ...leak, sent: null, gradients: 0 }, 1, false),
    verdict({ ...leak, bare: null, sent: null }, 12, false),
  ];
  expect(new Set(cases).size).toBe(3);
  for (const words of cases) expect(words).not.toContain("picks");
});
