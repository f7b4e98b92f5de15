import { expect, test } from "vitest";
import { hasAnswer } from "./try_model.ts";

test.each([
  ["before it has learnt", { probabilities: [0.9, 0.1], best: 0, round: 0 }, false],
  ["while all classes are the same to it", { probabilities: Array(10).fill(0.1), best: 0, round: 1 }, false],
  ["once one class is likelier", { probabilities: [0.47, 0.53], best: 1, round: 2 }, true],
])("the model has an answer, or none: %s", (_, prediction, answered) => {
  expect(hasAnswer(prediction)).toBe(answered);
});
