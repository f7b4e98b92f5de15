/** The body of a report: what a page's vector becomes before it leaves. */
import type { Plan } from "../wire/frames.ts";
import { Refused } from "../wire/refusal.ts";
import { type MechanismSpec, type Task } from "../wire/task.ts";
import { buildMechanism } from "./build.ts";
import type { Words } from "./keystream.ts";
import { Laplace } from "./mechanisms.ts";

/** keystream tensor of the noise on a number of records; that of the values is 0 */
const COUNT_TENSOR = 1;

export interface Body {
  body: Uint8Array<ArrayBuffer>;
  /** the number of records that was announced; null where none is */
  announced: number | null;
  /** the values that the server reads in it */
  read: Float32Array;
}

/** Randomises and encodes. `kept` is the number announced in an earlier report, null if there was none. */
export async function makeBody(
  task: Task, mechanism: MechanismSpec, plan: Plan, values: Float32Array, records: number, kept: number | null, words: Words,
): Promise<Body> {
  if (values.length !== task.upload.values) throw new Refused(`a report has ${task.upload.values} values, not ${values.length}`);
  const built = await buildMechanism(mechanism, task.upload.layers, plan);
  const output = await built.randomise(values, words);
  const read = built.read(output, values.length);
  const { samples } = task.upload;
  if (samples === null) return { body: output, announced: null, read };
  const announced = kept ?? (plan.round === 1 ? await drawCount(samples.mechanism, samples.limit, records, words) : null);
  const body = new Uint8Array(4 + output.length);
  new DataView(body.buffer).setUint32(0, announced ?? Math.max(1, Math.floor(samples.limit / 2)), true);
  body.set(output, 4);
  return { body, announced, read };
}

async function drawCount(spec: MechanismSpec, limit: number, records: number, words: Words): Promise<number> {
  const mechanism = await buildMechanism(spec, [{ first: 0, size: 1 }]);
  if (!(mechanism instanceof Laplace)) throw new Refused("this page announces a number of records with Laplace noise only");
  const [output] = await mechanism.outputs(Float32Array.of(records), words, COUNT_TENSOR);
  const estimate = output! * (mechanism.box.radius[0]! / mechanism.steps) + mechanism.box.centre[0]!;
  const floor = Math.floor(estimate);
  const rounded = estimate - floor === 0.5 ? floor + (floor % 2) : Math.round(estimate);
  return Math.max(1, Math.min(limit, rounded));
}
