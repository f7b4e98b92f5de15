import { describe, expect, test } from "vitest";
import { golden } from "../golden.ts";
import type { Task } from "../wire/task.ts";
import { GradientSum, LinearHead, splitClip } from "./linear_head.ts";
import { Records } from "./records.ts";
import { rint, roundWithin } from "./whole.ts";

const { x, y, classes, cases } = golden.whole_sums;
const inputs: number = x[0].length;
const records = new Records(inputs, Float32Array.from(x.flat() as number[]), y);
const all = [...y.keys()];

function linear(shape: number[], outputs: number, clip: number, steps: number): LinearHead {
  const values = shape.reduce((product, side) => product * side, 1);
  const parameters = [
    { name: "fc.weight", shape: [outputs, values], first: 0, size: outputs * values },
    { name: "fc.bias", shape: [outputs], first: outputs * values, size: outputs },
  ];
  const layers = [{ kind: "flatten", name: "flatten" }, { kind: "dense", name: "fc", inputs: values, outputs }];
  return LinearHead.of({ model: { layers, parameters }, input: { shape }, loss: "cross-entropy" } as unknown as Task, clip, steps)!;
}

describe("a linear head has Python's whole numbers, bit for bit", () => {
  test.each(cases as any[])("$what weights, clip $clip of $steps steps", (row: any) => {
    expect(splitClip(row.steps)).toEqual({ features: row.features, residuals: row.residuals });
    const head = linear([inputs], classes, row.clip, row.steps);
    const parameters = Float32Array.from(row.parameters as number[]);
    const sumOf = (chosen: number[]) => {
      const sum = new Float64Array(parameters.length);
      head.addTo(sum, parameters, records, chosen);
      return [...sum];
    };
    all.forEach((i) => {
      const [parts, whole] = [row.parts[i] as number[], row.records[i] as number[]];
      const weightsFirst = [...parts.flatMap((part) => whole.slice(0, -1).map((value) => part * value)), ...parts.map((part) => part * whole.at(-1)!)];
      expect(sumOf([i])).toEqual(weightsFirst.map((value) => value + 0)); // no -0
    });
    expect(sumOf(all)).toEqual(row.sum);
  });
});

describe.each(cases.filter(({ clip }: any) => clip === 0.7) as any[])("under $what weights", (row: any) => {
  const head = linear([inputs], classes, row.clip, row.steps);
  const parameters = Float32Array.from(row.parameters as number[]);
  const sumOf = (chosen: number[]) => {
    const sum = new Float64Array(parameters.length);
    head.addTo(sum, parameters, records, chosen);
    return sum;
  };

  test("a record moves a sum by the same vector, no longer than the clip, whatever is beside it and in which order", () => {
    const whole = sumOf(all);
    expect(sumOf(all.toReversed())).toEqual(whole);
    all.forEach((left) => {
      const own = sumOf([left]);
      const others = sumOf(all.filter((i) => i !== left).toReversed());
      expect(whole.map((value, i) => value - others[i]!)).toEqual(own);
      expect(own.reduce((total, value) => total + value * value, 0)).toBeLessThanOrEqual(row.steps ** 2);
    });
  });
});

test("gradients of any number of records are added modulo 2^52", () => {
  const [most, count, classes] = [32_767, 2_400_000, 8];
  const sumOf = (records: number): number[] => {
    const sum = new GradientSum(classes, 1, 1, most);
    sum.begin(new Float64Array(classes));
    for (let i = 0; i < records; i += 1) sum.add(Int16Array.of(most), 1, 1, 3);
    return [...sum.now.total];
  };
  expect(sumOf(count)).toEqual(sumOf(1).map((part) => Number(BigInt.asIntN(52, BigInt(part) * BigInt(count)))));
});

test.each([[2 ** 16 - 1, 2, true], [2 ** 16, 2, false], [2, 2 ** 13, true], [2, 2 ** 13 + 1, false]])(
  "%d inputs and %d classes have exact sums: %s", (values, outputs, exact) => {
    expect(linear([values], outputs, 1, 1000) !== null).toBe(exact);
  },
);

test("channels lie last in a page's records, and first among the weights", () => {
  const [head, flat] = [linear([3, 2, 2], 4, 1, 2 ** 20), linear([12], 4, 1, 2 ** 20)];
  const plain = Float32Array.from({ length: 12 }, (_, i) => Math.sin(i));
  const laidOut = Float32Array.from({ length: 12 }, (_, i) => plain[(i % 3) * 4 + Math.floor(i / 3)]!);
  const parameters = Float32Array.from({ length: 52 }, (_, i) => Math.cos(i));
  const [own, theirs] = [new Float64Array(52), new Float64Array(52)];
  expect(head.addTo(own, parameters, new Records(12, laidOut, [2]), [0])).toBe(flat.addTo(theirs, parameters, new Records(12, plain, [2]), [0]));
  expect(own).toEqual(theirs);
});

test("a record that is not finite adds nothing, and weights that are not count as 0", () => {
  const head = linear([2], 3, 1, 1000);
  const sum = new Float64Array(9);
  head.addTo(sum, Float32Array.of(NaN, Infinity, 1, 2, 3, 4, -Infinity, 1, 0), new Records(2, Float32Array.of(1, NaN, Infinity, 0), [0, 1]), [0, 1]);
  expect(sum).toEqual(new Float64Array(9));
  head.addTo(sum, Float32Array.of(NaN, Infinity, 1, 2, 3, 4, -Infinity, 1, 0), new Records(2, Float32Array.of(1, 2), [0]), [0]);
  expect(sum.every(Number.isInteger)).toBe(true);
  expect(sum.some((value) => value !== 0)).toBe(true);
});

describe("rounding into a ball", () => {
  test.each([[0.5, 0], [1.5, 2], [2.5, 2], [-0.5, 0], [-1.5, -2], [0.49999999999999994, 0], [2 ** 40 + 0.5, 2 ** 40]])("rint(%d)", (value, whole) => {
    expect(rint(value)).toBe(whole);
  });

  test("never gives more than the limit", () => {
    for (const limit of [1, 2, 3, 8, 1000]) {
      for (let width = 1; width <= 40; width += 1) {
        const values = Float64Array.from({ length: width }, (_, i) => Math.sin(7 * i + width) * limit);
        const whole = new Float64Array(width);
        const scale = roundWithin(values, 1, limit, whole);
        expect(whole.reduce((sum, value) => sum + value * value, 0)).toBeLessThanOrEqual(limit * limit);
        expect(scale).toBeLessThanOrEqual(1);
      }
    }
  });

  test.each([NaN, Infinity, -Infinity])("%d becomes 0", (value) => {
    const whole = new Float64Array(2);
    expect(roundWithin(Float64Array.of(value, 1), 1, 5, whole)).toBe(1);
    expect([...whole]).toEqual([0, 0]);
  });
});
