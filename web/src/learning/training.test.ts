import { describe, expect, test, vi } from "vitest";
import { gridFor } from "../bits/discrete.ts";
import { Keystream } from "../bits/keystream.ts";
import { erfc, normalQuantile, scaledErfc } from "../bits/normal.ts";
import { TENSOR, golden, numbers, stream, words } from "../golden.ts";
import type { Task } from "../wire/task.ts";
import { order, poissonSample } from "./draws.ts";
import { ScriptMultiplier } from "./multiply.ts";
import { Network } from "./network.ts";
import { Records } from "./records.ts";
import { addition, train } from "./training.ts";

const { shape, classes, records: count, model, cases } = golden.training;

async function setting() {
  const network = new Network(model, shape, classes, "cross-entropy", new ScriptMultiplier());
  const parameters = await numbers(TENSOR.weights, model.size, 0.125);
  const x = await numbers(TENSOR.records, count * network.recordSize, 1);
  const y = Array.from(await words(TENSOR.labels, count), (word) => word % classes);
  return { network, parameters, records: new Records(network.recordSize, x, y) };
}
const taskWith = (training: unknown) => ({ model, training, input: { shape }, loss: "cross-entropy" }) as Task;

describe("training ends where PyTorch's does, with the same key", () => {
  test.each(cases as any[])("$what", async (row: any) => {
    const { network, parameters, records } = await setting();
    const trained = await train(taskWith(row.training), network, parameters, records, row.round, await stream(), () => {});
    const own = trained.parameters!;
    const moved = Math.max(...own.map((value, i) => Math.abs(value - parameters[i]!)));
    const away = Math.max(...own.map((value, i) => Math.abs(value - row.parameters[i])));
    expect(away / moved).toBeLessThan(1e-4);
  });
});

describe("private training", () => {
  const training = { ...cases.at(-1).training, optimiser: cases[0].training.optimiser };

  test("without records it is noise alone, of the size that was agreed to", async () => {
    const { network, parameters } = await setting();
    const none = new Records(network.recordSize);
    const task = taskWith({ ...training, steps: 40 });
    const trained = await train(task, network, parameters, none, 1, await Keystream.fresh(), () => {});
    const step = (training.optimiser.lr * training.noise * training.clip) / training.expected_batch;
    const spread = Math.sqrt(trained.parameters!.reduce((sum, v, i) => sum + (v - parameters[i]!) ** 2, 0) / model.size / 40);
    // From 332 values, each a sum of 40 draws, with a standard deviation of 3.9 %: false alarms are rarer than 1 in 10^6.
    expect(Math.abs(spread / step - 1)).toBeLessThan(0.2);
    expect(trained.loss).toBeNull();
  });

  test("knows where its steps would have led without noise: nowhere without records, and there with next to none", async () => {
    const { network, parameters, records } = await setting();
    const none = new Records(network.recordSize);
    const task = taskWith({ ...training, optimiser: { ...training.optimiser, weight_decay: 0 } });
    const empty = await train(task, network, parameters, none, 1, await stream(), () => {});
    expect(empty.clear).toEqual(parameters);
    expect(empty.parameters).not.toEqual(parameters);
    const { clear, parameters: after } = await train(task, network, parameters, records, 1, await stream(), () => {});
    const moved = Math.max(...clear!.map((value, i) => Math.abs(value - parameters[i]!)));
    expect(moved).toBeGreaterThan(0);
    // Both records and noise move the report; without the noise alone (the same key) the rest is what records did.
    const rest = after!.map((value, i) => value - empty.parameters![i]!);
    const away = Math.max(...rest.map((value, i) => Math.abs(value - (clear![i]! - parameters[i]!))));
    expect(away / moved).toBeLessThan(1e-3);
  });

  test("that stops being finite hands in what it came with, and not nothing", async () => {
    const { network, parameters, records } = await setting();
    const wild = { ...training, noise: 1e3, optimiser: { ...training.optimiser, lr: 1e38 } };
    expect((await train(taskWith(wild), network, parameters, records, 1, await stream(), () => {})).parameters).toEqual(parameters);
  });

  test.each([["ordinary", 1], ["hostile", 1e6]])("adds the same whole vector for a record, whatever is beside it, under %s weights", async (_, scale) => {
    const { network, parameters, records } = await setting();
    const wild = parameters.map((value, i) => (scale === 1 ? value : 1 + scale * 1e-13 * value * (i % 7 ? 1 : 1e14)));
    const add = addition(training, taskWith(training), network);
    const sumOf = async (sample: number[]) => {
      const sum = new Float64Array(model.size);
      await add(sum, wild, records, sample);
      return sum;
    };
    const steps = gridFor(training.noise, training.resolution).clip;
    const all = [...Array(count).keys()];
    const whole = await sumOf(all);
    expect(whole.some((value) => value !== 0)).toBe(true);
    expect(await sumOf(all.toReversed())).toEqual(whole);
    for (const left of all) {
      const own = await sumOf([left]);
      const others = await sumOf(all.filter((i) => i !== left));
      expect(whole.map((value, i) => value - others[i]!)).toEqual(own);
      expect(own.reduce((total, value) => total + value * value, 0)).toBeLessThanOrEqual(steps ** 2);
    }
  });

  test("leaves nothing of one record in the memory of another, even in layers that write less than they take", async () => {
    const [kernel, side] = [-1, 8]; // such a kernel is refused with its task
    const layers = [
      { kind: "conv", name: "a", inputs: 1, outputs: 2, kernel: 1, padding: 0 }, { kind: "conv", name: "b", inputs: 2, outputs: 4, kernel: 3, padding: 0 },
      { kind: "elu", name: "e" }, { kind: "conv", name: "odd", inputs: 4, outputs: 4, kernel, padding: 0 }, { kind: "flatten", name: "f" }, { kind: "dense", name: "fc", inputs: 4 * side * side, outputs: 10 },
    ] as const;
    const sizes = { "a.weight": 2, "a.bias": 2, "b.weight": 72, "b.bias": 4, "odd.weight": 16, "odd.bias": 4, "fc.weight": 40 * side * side, "fc.bias": 10 };
    let size = 0;
    const parameters = Object.entries(sizes).map(([name, each]) => ({ name, shape: [each], first: (size += each) - each, size: each }));
    const first = (name: string) => parameters.find((parameter) => parameter.name === name)!.first;
    const at = new Float32Array(size).fill(1, first("odd.bias"), first("odd.bias") + 4);
    at.fill(3e38, first("a.weight"), first("a.weight") + 2); // infinite for the record of 2s,
    at.fill(1, first("b.weight"), first("b.weight") + 9).fill(-1, first("b.weight") + 9, first("b.weight") + 18); // and then no number
    const hostile = { name: "odd", layers: [...layers], parameters, size };
    const x = new Float32Array(3 * 64).fill(2, 64, 128);
    const run = async (chosen: number[]) => {
      const network = new Network(hostile, [1, 8, 8], 10, "cross-entropy", new ScriptMultiplier());
      const sum = new Float64Array(size);
      await addition(training, { ...taskWith(training), model: hostile, input: { shape: [1, 8, 8] } } as unknown as Task, network)(sum, at, new Records(64, x, [0, 1, 0]), chosen);
      return sum;
    };
    const [others, odd, all] = [await run([0, 2]), await run([1]), await run([0, 1, 2])];
    expect(others.some((value) => value !== 0)).toBe(true);
    expect(all).toEqual(others.map((value, i) => value + odd[i]!));
  });

  test("is the same to the last bit in whatever blocks records are", async () => {
    const { network, parameters, records } = await setting();
    const blocks = new Records(network.recordSize);
    for (let first = 0; first < count; first += 7) {
      const of = Array.from({ length: Math.min(7, count - first) }, (_, i) => records.at(first + i));
      blocks.add(Float32Array.from(of.flatMap(({ x, first }) => [...x.subarray(first, first + records.size)])), of.map(({ label }) => label));
    }
    expect(blocks.count).toBe(count);
    const trained = async (given: Records) => (await train(taskWith(training), network, parameters, given, 1, await stream(), () => {})).parameters;
    expect(await trained(blocks)).toEqual(await trained(records));
  });

  test("counts a record whose gradient cannot be computed as 0, and all others", async () => {
    const { network, parameters, records } = await setting();
    const sumOf = async (sample: number[]) => {
      const sum = new Float64Array(model.size);
      await addition(training, taskWith(training), network)(sum, parameters, records, sample);
      return sum;
    };
    const others = await sumOf([0, 2]);
    const { gradient } = network;
    let calls = 0;
    const failing = vi.spyOn(network, "gradient").mockImplementation(async (...given) => {
      if ((calls += 1) === 2) throw new RangeError("this record is beyond me");
      return gradient.apply(network, given);
    });
    const sum = await sumOf([0, 1, 2]);
    failing.mockRestore();
    expect(sum).toEqual(others);
    expect(sum.some((value) => value !== 0)).toBe(true);
  });

  test("ends when its caller wants it to", async () => {
    const { network, parameters, records } = await setting();
    const stop = () => { throw new Error("paused"); };
    await expect(train(taskWith(training), network, parameters, records, 1, await stream(), stop)).rejects.toThrow("paused");
  });
});

describe("portions of the records", () => {
  const training = { ...cases[0].training, epochs: 1, batch: 5, records: { portion: 10, sampling: 1, schedule: "continues" } };

  test("are taken up in turn, in an order that is drawn once", async () => {
    const { network, parameters, records } = await setting();
    const first = await train(taskWith(training), network, parameters, records, 1, await stream(), () => {});
    expect([...first.order!].sort((a, b) => a - b)).toEqual([...Array(count).keys()]);
    expect(first.seen).toBe(10);
    const again = await train(taskWith(training), network, parameters, records, 2, await Keystream.fresh(), () => {}, first.order);
    expect(again.order).toBe(first.order);
  });
});

test("a batch too large to be computed at once gives the gradient of the whole", async () => {
  const { network, parameters, records } = await setting();
  const many = 600;
  const repeated = new Records(network.recordSize);
  for (let i = 0; i < many; i += 1) {
    const { x, first, label } = records.at(i % count);
    repeated.add(x.subarray(first, first + network.recordSize), [label]);
  }
  const one = { ...cases[0].training, epochs: null, steps: 1, batch: 0, shuffle: false };
  const trained = await train(taskWith(one), network, parameters, repeated, 1, await stream(), () => {});
  const whole = await network.gradient(network.matrices(parameters), network.batch(repeated, [...Array(many).keys()]));
  const lr = one.optimiser.lr;
  trained.parameters!.forEach((value, i) => expect(value).toBeCloseTo(parameters[i]! - lr * whole.gradient[i]!, 6));
  expect(trained.loss).toBeCloseTo(whole.loss, 9);
});

test.each([["all", null], ["a portion", { portion: 10, sampling: 0.5, schedule: "continues" }]])(
  "plain training on %s of no records hands in no parameters: nothing has changed", async (_, portion) => {
    const { network, parameters } = await setting();
    const task = taskWith({ ...cases[0].training, records: portion });
    const { parameters: after, loss, seen } = await train(task, network, parameters, new Records(network.recordSize), 1, await stream(), () => {});
    expect([after, loss, seen]).toEqual([null, null, 0]);
  },
);

test("training that stops being finite hands in no parameters", async () => {
  const { network, parameters, records } = await setting();
  const wild = { ...cases[0].training, optimiser: { ...cases[0].training.optimiser, lr: 1e38 } };
  expect((await train(taskWith(wild), network, parameters, records, 1, await stream(), () => {})).parameters).toBeNull();
});

describe("draws", () => {
  test("an order is a permutation, another one in another epoch", async () => {
    const words = await stream();
    const [a, b] = [await order(words, 0, 50), await order(words, 1, 50)];
    expect([...a].sort((x, y) => x - y)).toEqual([...Array(50).keys()]);
    expect([...a]).not.toEqual([...b]);
  });

  test("a Poisson batch has about rate * records of them", async () => {
    const sample = await poissonSample(await stream(), 0, 10_000, Math.floor(0.2 * 2 ** 32));
    expect(Math.abs(sample.length - 2000)).toBeLessThan(4 * 40); // a fixed key; 40 is the standard deviation
  });

  test("a Poisson batch is drawn for 2^20 records at a time, from the same words as at once: no array is as long as all of them", async () => {
    const asked: number[][] = [];
    const words = { words: async (...place: [number, number, number, number]) => {
      asked.push(place);
      return new Uint32Array(place[3]).fill(1).fill(0, 0, 1);
    } };
    expect(await poissonSample(words, 1, 2 ** 21 + 1, 1)).toEqual([0, 2 ** 20, 2 ** 21]);
    expect(asked).toEqual([[2, 1, 2 ** 21 + 4, 2 ** 20], [2, 1, 3 * 2 ** 20 + 4, 2 ** 20], [2, 1, 2 ** 22 + 4, 1]]);
  });

  test("a stream that ends after 2^34 words goes on in another, as in Python", async () => {
    const asked: number[][] = [];
    const words = { words: async (...place: [number, number, number, number]) => {
      asked.push(place);
      return new Uint32Array(place[3]).fill(asked.length);
    } };
    expect(await poissonSample(words, 2 ** 33, 8, 2)).toHaveLength(8); // from word 2^36 on
    expect(await poissonSample(words, (2 ** 34 - 4) / 12, 12, 3)).toEqual([0, 1, 2, 3]); // four words before the end
    expect(asked).toEqual([[2 ** 15 + 2 ** 10, 4, 0, 8], [2, 1, 2 ** 34 - 4, 4], [2 ** 15 + 2 ** 10, 1, 0, 8]]);
  });
});

test.each([
  // p, quantile: scipy.special.ndtri
  [0.5, 0], [0.975, 1.959963984540054], [0.1, -1.2815515655446004], [1e-10, -6.361340902404056], [1e-300, -37.0470962993612],
])("the normal quantile of %d", (p, x) => {
  expect(Math.abs(normalQuantile(p) - x)).toBeLessThan(1e-13 * Math.max(1, Math.abs(x)));
});

test.each([
  // x, erfcx(x), erfc(x): scipy.special
  [-3, 16205.988853999586, 1.9999779095030015], [0.5, 0.6156903441929259, 0.4795001221869535],
  [1.9, 0.26650937366167254, 0.007209570764742531], [2.1, 0.24511912334517244, 0.0029794666563329845],
  [6, 0.09277656780053836, 2.1519736712498913e-17], [26, 0.02168358485056291, 5.663192408856145e-296],
])("the complementary error function at %d", (x, scaled, plain) => {
  expect(Math.abs(scaledErfc(x) / scaled - 1)).toBeLessThan(1e-12);
  expect(Math.abs(erfc(x) / plain - 1)).toBeLessThan(1e-12);
});
