import "fake-indexeddb/auto";
import { beforeAll, describe, expect, test } from "vitest";
import { tasks } from "../golden.ts";
import { Ledger } from "../privacy/ledger.ts";
import { PrivacyRoom } from "../privacy/privacy.ts";
import type { Choice } from "../privacy/terms.ts";
import { Refused } from "./refusal.ts";
import { readTask } from "./task.ts";

/** What a server may write in the place of anything: as JSON reads it, and as a structured clone hands it on. */
const ODD: readonly unknown[] = [...JSON.parse('["x", {}, [1, 2], [], "0.2", "1", -1, 0.5, null, true, 1e400, -1e400, 1e308, 9007199254740993]'), NaN, undefined];

type Path = readonly (string | number)[];

/** Every field of a task, and of lists their first and their last. */
function pathsOf(value: unknown, path: Path = []): Path[] {
  if (typeof value !== "object" || value === null) return [path];
  const keys = Array.isArray(value) ? [...new Set([0, value.length - 1])].filter((k) => k in value) : Object.keys(value);
  return [path, ...keys.flatMap((key) => pathsOf((value as any)[key], [...path, key]))];
}

function changed(task: any, path: Path, to: unknown): any {
  const found = structuredClone(task);
  const parent = path.slice(0, -1).reduce((at, key) => at[key], found);
  parent[path.at(-1)!] = to;
  return found;
}

const kindOf = (value: unknown) => (Array.isArray(value) ? "list" : value === null || value === undefined ? "nothing" : typeof value);

/** With steep thresholds whose last ones decide what the page counts. */
function signTask(last: readonly unknown[], federation = "sign"): any {
  const task = structuredClone(tasks["two-point-digits"]);
  const thresholds = [...Array<number>(4097 - last.length).fill(2 ** 31 - 1), ...last];
  thresholds[0] = 0;
  const mechanism = { name: "sign", t_min: 2 ** 31, thresholds, domain: { kind: "box", centre: 0, radius: 1 } };
  const [first] = task.strengths;
  first.releases[0].guarantees = [];
  first.releases[0].claimed = null;
  return { ...task, federation, strengths: [{ ...first, mechanism }, ...task.strengths.slice(1)] };
}

describe("every field of every task", () => {
  let room: PrivacyRoom;
  beforeAll(async () => {
    room = new PrivacyRoom(await Ledger.open("fields"));
  });

  const choices: Choice[] = (["client", "record-replace", "record-add-remove"] as const).map((adjacency) => ({ budget: { limit: 4, delta: 1e-5, basis: "proven", adjacency }, acceptUnbounded: true, acceptClaimed: true }));
  const costs = (task: any) => Promise.all(choices.map(async (choice) => (await room.outlook({ task, choice, own: true })).perRound.at(-1)!));

  test.each(Object.keys(tasks))("%s: a value of another kind is refused, and one of its kind costs no less", async (name) => {
    const before = await costs(tasks[name]);
    for (const path of pathsOf(tasks[name]).slice(1)) {
      const original = path.reduce((at: any, key) => at[key], tasks[name]);
      for (const odd of ODD) {
        const where = `${path.join(".")} = ${JSON.stringify(odd)}`;
        const task = changed(tasks[name], path, odd);
        const after = await costs(task).catch((error: unknown) => {
          expect(error, where).toBeInstanceOf(Refused);
          return null;
        });
        if (after === null) continue;
        if (original !== null && original !== "infinite") expect([kindOf(original), "nothing"], where).toContain(kindOf(odd));
        after.forEach((epsilon, i) => expect(epsilon, where).toBeGreaterThanOrEqual(before[i]! * (1 - 1e-8)));
      }
    }
  }, 120_000);

  test.each(Object.keys(tasks))("%s: a field that this page does not know is refused, wherever it stands", (name) => {
    for (const path of pathsOf(tasks[name])) {
      const at = path.reduce((value: any, key) => value[key], tasks[name]);
      if (kindOf(at) !== "object" || /settings$/.test(path.join("."))) continue;
      expect(() => readTask(path.length ? changed(tasks[name], path, { ...at, odd: 1 }) : { ...at, odd: 1 }), path.join(".")).toThrow(Refused);
    }
  });
});

describe("thresholds of a sign", () => {
  const choice: Choice = { budget: { limit: 0.001, delta: 1e-5, basis: "proven", adjacency: "client" } };

  test.each([["x", 0], [{}, 0], [[1, 2], 0], [NaN, 0], [0.5], [2 ** 31], [0], [-1], ["5"]].map((last) => [last]))("are whole, in reach and rising: not with %j at their end", async (last) => {
    const room = new PrivacyRoom(await Ledger.open("signs"));
    await expect(room.open({ task: signTask(last), choice, own: true })).rejects.toThrow(Refused);
  });
});

test("layers have whole sizes from 1 on, and the parameters that belong to them", () => {
  const conv = { kind: "conv", name: "c", inputs: 1, outputs: 2, kernel: 3, padding: 1 };
  const withConv = (change: object) => {
    const task = structuredClone(tasks["webfed-digits"]);
    const layer = { ...conv, ...change };
    const side = 8 + 2 * layer.padding - layer.kernel + 1;
    task.model.layers = [layer, { kind: "flatten", name: "f" }, { kind: "dense", name: "fc", inputs: 2 * side * side, outputs: 10 }];
    let first = 0;
    task.model.parameters = [["c.weight", [2, 1, layer.kernel, layer.kernel]], ["c.bias", [2]], ["fc.weight", [10, 2 * side * side]], ["fc.bias", [10]]].map(([name, shape]: any) => {
      const size = shape.reduce((product: number, length: number) => product * length, 1);
      first += size;
      return { name, shape, first: first - size, size };
    });
    task.model.size = task.upload.values = first;
    task.upload.layers = [{ name: "all", first: 0, size: first }];
    task.plan.arrays = { parameters: [first] };
    return task;
  };
  expect(readTask(withConv({})).model.layers).toHaveLength(3);
  for (const change of [{ kernel: -1 }, { kernel: 0 }, { padding: -1 }, { padding: 0.5 }, { kernel: 2.5 }]) expect(() => readTask(withConv(change)), JSON.stringify(change)).toThrow(Refused);
  const odd = withConv({});
  odd.model.parameters[0].shape = [2, 9];
  expect(() => readTask(odd)).toThrow(Refused);
});
