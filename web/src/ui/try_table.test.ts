import { expect, test } from "vitest";
import type { Task } from "./api.ts";
import { fieldsOf, rangeWords } from "./try_table.ts";

const columns = [{ name: "age", low: 0, high: 120 }, { name: "weight", low: null, high: null }];
const input = (given: object) => ({ input: { shape: [2], kind: "features", ...given } }) as Pick<Task, "input">;

test("a form has a field for each column, in the model's order, with the middle of its range or the mean in it", () => {
  expect(fieldsOf(input({ columns, mean: [0, 70.12345] }))).toEqual([
    { name: "age", low: 0, high: 120, value: 60 },
    { name: "weight", low: null, high: null, value: 70.12 },
  ]);
});

test("without means zero is the usual value, and without names columns are counted", () => {
  expect(fieldsOf(input({ columns, mean: [0] })).map(({ value }) => value)).toEqual([60, 0]);
  expect(fieldsOf(input({ columns: null })).map(({ name }) => name)).toEqual(["column 1", "column 2"]);
});

test("a range is hinted at as far as it is known", () => {
  expect(columns.map(rangeWords)).toEqual(["0 to 120", ""]);
  expect([rangeWords({ low: 1, high: null }), rangeWords({ low: null, high: 9 })]).toEqual(["from 1", "up to 9"]);
});
