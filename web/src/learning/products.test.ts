import { describe, expect, test } from "vitest";
import { Workbench } from "./products.ts";
import { tilesFor } from "./tiles.ts";

const SIZES = [[1, 1, 1], [3, 1, 2], [4, 2, 5], [5, 3, 8], [9, 10, 145]];
const values = (length: number, factor: number) => Float64Array.from({ length }, (_, i) => ((i * factor) % 4099) - 2000);

describe.each([["WebAssembly", undefined], ["plain script", null]] as const)("in %s", (_, kernel) => {
  const make = (length: number) => tilesFor(length, kernel);

  test.each(SIZES)("%d rows by %d others of %d values have the products of each with each", (count, size, width) => {
    const bench = new Workbench([count * width, size * width, count * size], make);
    const [rows, others, found] = bench.arrays as [Float64Array, Float64Array, Float64Array];
    rows.set(values(rows.length, 7919));
    others.set(values(others.length, 6007));
    bench.multiply(rows, count, others, size, width, found);
    const expected = Array.from({ length: count * size }, (_, at) => {
      let sum = 0;
      for (let j = 0; j < width; j += 1) sum += rows[Math.floor(at / size) * width + j]! * others[(at % size) * width + j]!;
      return sum;
    });
    expect([...found]).toEqual(expected);
  });

  test.each(SIZES)("%d rows times their parts are added to %d sums of %d values", (count, size, width) => {
    const bench = new Workbench([size * width, count * width, 1], make);
    const [sum, rows, behind] = bench.arrays as [Float64Array, Float64Array, Float64Array];
    const parts = values(count * size, 31);
    sum.set(values(sum.length, 13));
    rows.set(values(rows.length, 7919));
    const expected = Array.from(sum, (own, at) => {
      let total = own;
      for (let i = 0; i < count; i += 1) total += parts[i * size + Math.floor(at / width)]! * rows[i * width + (at % width)]!;
      return total;
    });
    bench.addTransposed(sum, parts, size, rows, count, width);
    expect([...sum]).toEqual(expected);
    expect([...behind]).toEqual([0]);
  });
});

test("this machine runs the WebAssembly that is tested here", () => {
  expect(tilesFor(8).buffer.byteLength).toBe(2 ** 16); // a page of its memory
  expect(tilesFor(8, null).buffer.byteLength).toBe(64);
});
