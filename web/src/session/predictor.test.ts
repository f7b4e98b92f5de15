import { expect, test, vi } from "vitest";
import { tasks } from "../golden.ts";
import { TrainingRoom } from "../learning/room.ts";
import { turns } from "./before.ts";
import { openPredictor } from "./predictor.ts";

const task = structuredClone(tasks["webfed-digits"]);
const close = vi.fn();

function opened(answers: () => Response) {
  const fetching = vi.fn(async () => answers());
  const room = () => ({ remote: new TrainingRoom() as any, close });
  return { fetching, predictor: openPredictor("http://here", "demo", task, { room, fetch: fetching as never }) };
}

const model = () => {
  const parameters = new Float32Array(task.model.size);
  parameters[task.model.size - 3] = 5; // the bias of the class 7
  return new Response(parameters.buffer, { headers: { "X-Sordino-Round": "20" } });
};

test("a model is fetched once, with the first question, and answers drawings and lines of numbers", async () => {
  const { fetching, predictor } = opened(model);
  expect(fetching).not.toHaveBeenCalled();
  const picture = { width: 8, height: 8, pixels: new Uint8Array(64) };
  expect(await predictor.predict(picture)).toMatchObject({ best: 7, round: 20 });
  expect((await predictor.predict({ values: new Float32Array(64) })).probabilities).toHaveLength(10);
  expect(fetching.mock.calls.map(([address]: any) => address)).toEqual(["http://here/api/federations/demo/model.bin"]);
  predictor.close();
  expect(close).toHaveBeenCalledOnce();
});

test("a model that does not fit is refused, and asked for again with the next question", async () => {
  let fits = false;
  const { predictor } = opened(() => (fits ? model() : new Response(new Uint8Array(8))));
  const question = { values: new Float32Array(64) };
  await expect(predictor.predict(question)).rejects.toThrow();
  fits = true;
  expect((await predictor.predict(question)).best).toBe(7);
});

test("examples to look at are of each class in turn", () => {
  expect(turns([2, 2, 0, 1, 0])).toEqual([2, 3, 0, 4, 1]);
});
