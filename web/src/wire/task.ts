/** The task of docs/web-protocol.md: what a federation asks of a page, agreed to before joining. Unknown is refused. */
import { canonical, isObject, type Plan } from "./frames.ts";
import { Refused } from "./refusal.ts";

export type Layer =
  | { kind: "flatten"; name: string }
  | { kind: "dense"; name: string; inputs: number; outputs: number }
  | { kind: "conv"; name: string; inputs: number; outputs: number; kernel: number; padding: number }
  | { kind: "max-pool"; name: string; size: number }
  | { kind: "relu" | "elu" | "tanh"; name: string };

export interface Model {
  name: string;
  layers: Layer[];
  parameters: { name: string; shape: number[]; first: number; size: number }[];
  size: number;
}

interface AnyOptimiser {
  lr: number;
  weight_decay: number;
  /** patterns of the names of parameters that decay; empty: all */
  decayed: string[];
  decay: number;
}

export type Optimiser =
  | (AnyOptimiser & { name: "sgd"; momentum: number; nesterov: boolean })
  | (AnyOptimiser & { name: "adam"; beta1: number; beta2: number; epsilon: number })
  | (AnyOptimiser & { name: "rmsprop"; rho: number; epsilon: number; momentum: number });

export interface PlainTraining {
  kind: "plain";
  optimiser: Optimiser;
  epochs: number | null;
  steps: number | null;
  /** records of a batch; 0: all at once */
  batch: number;
  shuffle: boolean;
  drop_last: boolean;
  records: { portion: number; sampling: number; schedule: string } | null;
}

export interface PrivateTraining {
  kind: "private";
  optimiser: Optimiser;
  clip: number;
  /** standard deviation of the noise over `clip` */
  noise: number;
  rate: number;
  threshold: number;
  expected_batch: number;
  steps: number;
  /** bits of the noise: its sigma is 2^resolution grid steps */
  resolution: number;
}

export type Training = PlainTraining | PrivateTraining;

export type Domain = { kind: "box"; centre: number | number[]; radius: number | number[] } | { kind: "plan" };

export type MechanismSpec =
  | { name: "none" }
  | { name: "two-point"; t_min: number; domain: Domain }
  | { name: "sign"; t_min: number; thresholds: number[]; domain: Domain }
  | {
      name: "laplace"; steps: number; rate: [string, string]; negative: number; limit: number; domain: Domain;
      digits: { shift: number; size: number; sha256: string }[];
    }
  | {
      name: "gaussian"; steps: number; sigma: number; levels: number; reach: number; limit: number; domain: Domain;
      sha256: string;
    };

export type StatedLoss =
  | { type: "Pure"; epsilon: number; count: number }
  | { type: "Metric"; alpha: number; distance: number; count: number }
  | { type: "RandomizedBit"; t_min: number; count: number }
  | { type: "Gaussian"; mu: number; eta: number; tau: number }
  | { type: "PoissonGaussian"; q: number; sigma: number; steps: number; eta?: number; tau?: number }
  | { type: "Infinite"; why: string };

export interface Guarantee {
  adversary: string;
  adjacency: string;
  basis: string;
  loss: StatedLoss;
  epsilon: number | "infinite";
  delta: number;
}

export interface Claim {
  epsilon: number;
  delta: number;
  formula: string;
  adjacency: string;
  adversary: string;
  covers: "release" | "schedule";
}

export interface Release {
  rounds: [number, number];
  what: string;
  claimed: Claim | null;
  guarantees: Guarantee[];
}

export interface Spending {
  basis: "proven" | "claimed";
  adjacency: string;
  adversary: string;
  delta: number;
  epsilon: (number | "infinite")[];
}

export interface Strength {
  clients: number[];
  epsilon: number | null;
  mechanism: MechanismSpec;
  releases: Release[];
  spending: Spending[];
}

export interface Task {
  protocol: 2;
  /** by which the server's addresses call it */
  name?: string;
  /** by which plans call it */
  federation: string;
  /** the public key that signs plans, in hexadecimal; the first one, where it was rotated since */
  coordinator: string;
  /** SHA-256 of the terms that all members agree to, native clients too: every plan is signed for it */
  terms: string;
  recipe_digest: string;
  title: string;
  summary: string;
  paper: string | null;
  method: string;
  clients: number;
  rounds: { count: number; quorum: number; deadline: number | null };
  /** `largest`: the raw value of the brightest pixel */
  input: { shape: number[]; mean: number[]; std: number[]; kind: "image" | "features"; largest?: number };
  classes: string[];
  model: Model;
  loss: "cross-entropy" | "one-versus-rest";
  training: Training;
  upload: {
    what: "weights" | "update";
    values: number;
    layers: { name: string; first: number; size: number }[];
    samples: null | { kind: "noisy"; limit: number; what: string; mechanism: MechanismSpec };
    /** the L2 norm to which the server shortens longer reports; every plan announces it */
    norm: number | null;
  };
  strengths: Strength[];
  plan: { step: string; settings: Record<string, unknown>; arrays: Record<string, number[]> };
  budget: { limit: number; delta: number; basis: "proven" | "claimed"; adjacency: string; adversary: string } | null;
  choices: { noise: number; spending: Spending; accuracy: number | null; alone: number | null }[];
  statement: { title: string; text: string; sentences: string[] };
}

const LAYERS = ["flatten", "dense", "conv", "max-pool", "relu", "elu", "tanh"];
const MECHANISMS = ["none", "two-point", "sign", "laplace", "gaussian"];
/** values of a model at most: a page that trains more would stand still */
export const LARGEST_MODEL = 2 ** 22;
/** rounds of a schedule at most, as of a client's limits.rounds */
export const MOST_ROUNDS = 1000;
/** steps, or epochs, of a round at most: a round takes minutes and not days */
export const MOST_STEPS = 10_000;

/** The task, if this page can carry it out as a whole. */
export function readTask(given: unknown): Task {
  const task = given as Task;
  need(isObject(task), "a task is an object");
  need(task.protocol === 2, `this page speaks version 2 of the protocol, the server ${task.protocol}: reload the page`);
  need(typeof task.federation === "string" && task.federation.length > 0, "a task names its federation");
  need(/^[0-9a-f]{64}$/.test(task.coordinator), "a task names the key that signs plans");
  need(/^[0-9a-f]{64}$/.test(task.terms), "a task names the terms that plans are signed for");
  need(isObject(task.rounds) && whole(task.rounds.count, 1, MOST_ROUNDS), `pages take part in 1 to ${MOST_ROUNDS} rounds`);
  checkInput(task);
  checkModel(task);
  checkTraining(task);
  checkUpload(task);
  checkStrengths(task);
  return task;
}

function checkInput({ input, classes }: Task): void {
  need(isObject(input) && Array.isArray(input.shape) && input.shape.every((side) => whole(side, 1, 10_000)), "the shape of records is not known");
  need(input.shape.length === 1 || input.shape.length === 3, "records are lists of features, or channels x height x width");
  const sized = (list: unknown) => Array.isArray(list) && (list.length === 1 || list.length === input.shape[0]) && list.every(Number.isFinite);
  need(sized(input.mean) && sized(input.std) && input.std.every((std) => std > 0), "the constants of normalisation do not fit the records");
  need(Array.isArray(classes) && classes.length >= 2 && classes.length <= 256, "a task has from 2 to 256 classes");
}

function checkModel({ model, input, classes, loss }: Task): void {
  need(isObject(model) && Array.isArray(model.layers) && Array.isArray(model.parameters), "the model is not described");
  need(whole(model.size, 1, LARGEST_MODEL), `pages train models of up to ${LARGEST_MODEL.toLocaleString("en")} values`);
  for (const layer of model.layers) {
    need(LAYERS.includes(layer.kind), `this page knows no layer of the kind ${String(layer.kind)}: reload the page`);
    if (layer.kind === "max-pool") need(layer.size === 2, "this page pools by 2 x 2 only");
  }
  let first = 0;
  for (const parameter of model.parameters) {
    const size = parameter.shape.reduce((product, side) => product * side, 1);
    need(parameter.first === first && parameter.size === size, `the parameter ${parameter.name} is not where it should be`);
    first += size;
  }
  need(first === model.size, "the parameters of the model do not fill its vector");
  need(shapeAfter(model.layers, input.shape).join() === String(classes.length), "the model does not end in one score per class");
  need(loss === "cross-entropy" || loss === "one-versus-rest", `this page knows no loss called ${String(loss)}`);
}

/** The shape of one record after the layers. */
export function shapeAfter(layers: readonly Layer[], shape: readonly number[]): number[] {
  let now = [...shape];
  for (const layer of layers) {
    if (layer.kind === "flatten") now = [now.reduce((product, side) => product * side, 1)];
    if (layer.kind === "dense") {
      need(now.length === 1 && now[0] === layer.inputs, `the layer ${layer.name} does not fit what comes before it`);
      now = [layer.outputs];
    }
    if (layer.kind === "conv") {
      const grown = now.slice(1).map((side) => side + 2 * layer.padding - layer.kernel + 1);
      need(now.length === 3 && now[0] === layer.inputs && Math.min(...grown) >= 1, `the layer ${layer.name} does not fit what comes before it`);
      now = [layer.outputs, ...grown];
    }
    if (layer.kind === "max-pool") {
      need(now.length === 3, `the layer ${layer.name} needs images`);
      now = [now[0]!, Math.floor(now[1]! / 2), Math.floor(now[2]! / 2)];
    }
  }
  return now;
}

function checkTraining({ training }: Task): void {
  need(isObject(training) && isObject(training.optimiser), "the training is not described");
  need(["sgd", "adam", "rmsprop"].includes(training.optimiser.name), `this page knows no optimiser called ${String(training.optimiser.name)}`);
  need(training.optimiser.lr > 0, "the learning rate must be above zero");
  if (training.kind === "private") {
    const { clip, noise, rate, threshold, expected_batch, steps, resolution } = training;
    const usual = [clip, noise, expected_batch].every((x) => Number.isFinite(x) && x >= 1e-12 && x <= 1e12);
    need(usual && rate > 0 && rate <= 1, "private training needs positive numbers, from 1e-12 to 1e12");
    need(threshold === Math.floor(rate * 2 ** 32), "the threshold of private sampling is not that of its rate");
    need(whole(steps, 1, MOST_STEPS), `pages take 1 to ${MOST_STEPS} noisy steps in a round`);
    need(whole(resolution, 4, 24), "the noise of private training has 2^4 to 2^24 grid steps");
  } else {
    need(training.kind === "plain", `this page knows no training called ${String((training as Training).kind)}`);
    need((training.epochs === null) !== (training.steps === null), "training goes by epochs or by steps");
    need(whole(training.epochs ?? training.steps, 1, MOST_STEPS), `pages train for 1 to ${MOST_STEPS} epochs or steps in a round`);
    need(whole(training.batch, 0, 2 ** 31), "training has a batch size");
  }
}

function checkUpload({ upload, model, plan }: Task): void {
  need(isObject(upload) && (upload.what === "weights" || upload.what === "update"), "what is uploaded is not described");
  need(upload.values === model.size, "pages send every value of the model");
  need(upload.samples === null || upload.samples.kind === "noisy", "a number of records may leave with noise only");
  need(isObject(plan) && plan.step === "report" && isObject(plan.arrays) && isObject(plan.settings), "the plan is not described");
  need(upload.norm === null ? plan.settings["norm"] === undefined : Number(plan.settings["norm"]) === upload.norm && upload.norm > 0, "plans announce another norm than the task");
  need(canonical(plan.arrays["parameters"] ?? null) === canonical([model.size]), "a plan must hold the parameters of the model");
}

function checkStrengths({ strengths, clients, training, upload }: Task): void {
  need(Array.isArray(strengths) && strengths.length >= 1, "what a page releases is not described");
  const slots = strengths.flatMap((strength) => strength.clients).sort((a, b) => a - b);
  need(slots.length === clients && slots.every((slot, i) => slot === i), "every slot must have one strength");
  for (const { mechanism, releases } of strengths) {
    need(isObject(mechanism) && MECHANISMS.includes(mechanism.name), `this page knows no mechanism called ${String(mechanism?.name)}: reload the page`);
    need(training.kind !== "private" || mechanism.name === "none", "what private training made is sent as it is");
    need(Array.isArray(releases) && releases.length >= 1, "what leaves is not described");
    need(upload.samples === null || releases.length >= 2, "the number of records has no line of its own");
  }
}

/** Refuses a plan that does not fit the task that was agreed to. */
export function checkPlan(task: Task, step: string, plan: Plan): void {
  const { round } = plan;
  const not = (sentence: string): never => {
    throw new Refused(`the server asked for something that was not agreed to: ${sentence}`);
  };
  if (plan.federation !== task.federation) not("a plan of another federation");
  if (step !== task.plan.step) not(`the step "${step.slice(0, 20)}"`);
  if (!(round >= 1 && round <= task.rounds.count)) not(`round ${round} of ${task.rounds.count}`);
  if (canonical(plan.settings) !== canonical(task.plan.settings)) not("other settings");
  const shapes = Object.fromEntries([...plan.arrays].map(([name, array]) => [name, array.shape]));
  if (canonical(shapes) !== canonical(task.plan.arrays)) not("tensors of other names or shapes");
  for (const { values } of plan.arrays.values()) {
    if (!values.every((value) => Number.isFinite(value))) not("numbers that are not finite");
  }
}

export function strengthOf(task: Task, client: number): Strength {
  const found = task.strengths.find((strength) => strength.clients.includes(client));
  if (!found) throw new Refused(`the server gave this page the number ${client}, which the federation does not have`);
  return found;
}

function need(condition: unknown, sentence: string): asserts condition {
  if (!condition) throw new Refused(`this page cannot take part: ${sentence}`);
}

function whole(value: unknown, low: number, high: number): boolean {
  return Number.isInteger(value) && (value as number) >= low && (value as number) <= high;
}
