/** Trying a federation's model without taking part: the model is fetched, and computed in the page. */
import { type Answer, fetched } from "../wire/fetching.ts";
import { Refused } from "../wire/refusal.ts";
import { type Task, readTask } from "../wire/task.ts";
import { pictureToRecord, valuesToRecord } from "../workers/data.ts";
import { placesOf } from "./line.ts";
import { trainingRoom } from "./rooms.ts";
import type { Example, Prediction } from "./session.ts";

export interface Predictor {
  predict(example: Example): Promise<Prediction>;
  /** Ends the worker, if one has begun. */
  close(): void;
}

/** What a predictor is made of; tests bring their own. */
interface Parts {
  room: typeof trainingRoom;
  fetch: typeof fetch;
}

const REAL: Parts = { room: trainingRoom, fetch: (...given) => fetch(...given) };

/** Nothing is fetched or begun before the first question; what fails is tried again with the next. */
export function openPredictor(server: string, federation: string, given: unknown, parts: Parts = REAL): Predictor {
  const task = readTask(given);
  let room: ReturnType<typeof trainingRoom> | null = null;
  let ready: Promise<{ parameters: Float32Array; round: number }> | null = null;
  const prepare = async (): Promise<{ parameters: Float32Array; round: number }> => {
    const answer = await fetched(placesOf(server, federation).model, { fetch: parts.fetch });
    const parameters = readModel(answer, task);
    if (!parameters) throw new Refused("the server has no model that fits this federation: try again later");
    room ??= parts.room();
    await room.remote.open(task);
    return { parameters, round: Number(answer.headers.get("X-Sordino-Round") ?? 0) };
  };
  return {
    async predict(example) {
      ready ??= prepare().catch((error: unknown) => {
        ready = null;
        throw error;
      });
      const { parameters, round } = await ready;
      const probabilities = await room!.remote.predict(parameters, recordOf(example, task));
      return { probabilities, best: probabilities.indexOf(Math.max(...probabilities)), round };
    },
    close: () => room?.close(),
  };
}

/** An example as the model takes it. */
export function recordOf(example: Example, task: Task): Float32Array<ArrayBuffer> {
  return "values" in example ? valuesToRecord(example.values, task) : pictureToRecord(example, task);
}

/** The numbers of a model, with what scoring takes beside its parameters; null where they do not fit the task. */
export function readModel({ ok, bytes }: Pick<Answer, "ok" | "bytes">, { model, training }: Task): Float32Array | null {
  const size = model.size + (training.kind === "sums" ? training.maps + training.maps ** 2 : 0);
  if (!ok || bytes.length !== 4 * size) return null;
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: size }, (_, i) => view.getFloat32(4 * i, true));
}
