import { describe, expect, test } from "vitest";
import type { Detail, Summary } from "../ui/api.ts";
import { steps } from "./control.ts";

const detail = { may_free: true, task: { training: { kind: "plain" } } } as Detail;
const summary = (given: Partial<Summary>): Summary => ({ state: "waiting", round: 0, quorum: 2, starts_in: null, ...given }) as Summary;

describe("the operator", () => {
  test("starts the first round once a countdown runs", () => {
    expect(steps(summary({}), detail)).toMatchObject({ start: "not yet", again: false });
    expect(steps(summary({ starts_in: 14 }), detail)).toMatchObject({ start: "yes", again: false });
    expect(steps(summary({ starts_in: 0 }), detail).start).toBe("yes");
  });

  test.each([
    ["it trains", { state: "training" }],
    ["a later round waits", { state: "waiting", round: 3 }],
  ] as const)("does nothing while %s", (_, given) => {
    expect(steps(summary(given), detail)).toMatchObject({ start: "no", again: false, goOn: false });
  });

  test.each([
    ["finished", "plain", true],
    ["finished", "sums", false],
    ["failed", "plain", false],
  ] as const)("begins again when it is %s, and goes on where training is %s: %s", (state, kind, goOn) => {
    const task = { training: { kind } } as Detail["task"];
    expect(steps(summary({ state }), { may_free: true, task })).toMatchObject({ start: "no", again: true, goOn });
  });

  test("does nothing from another machine", () => {
    for (const given of [{ starts_in: 3 }, { state: "finished" }] as const)
      expect(steps(summary(given), { ...detail, may_free: false })).toMatchObject({ start: "no", again: false, goOn: false });
  });
});
