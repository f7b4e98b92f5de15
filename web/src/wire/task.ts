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

/** Sums over all records on public features: second moments, then gradients of a linear head. */
export interface SumsTraining {
  kind: "sums";
  extractor: { kind: "scattering"; scales: number; angles: number; orders: number };
  /** of a record's features */
  maps: number;
  cells: number;
  /** how often the square root of a feature is taken */
  roots: number;
  /** groups of maps that are normalised by themselves; 0: none are */
  groups: number;
  /** the input that the bias sees */
  bias: number;
  clip: number;
}

export type Training = PlainTraining | PrivateTraining | SumsTraining;

/** What records are whitened by: a matrix `[maps, maps]` and a vector `[maps]`, whole numbers. */
export interface Whitening {
  left: Float32Array;
  centre: Float32Array;
}

/** L2 norms that no whole vector of one record exceeds: in normal form, whitened, and of its residuals. */
export interface Limits {
  unit: number;
  row: number;
  residual: number;
}

/** What is summed in some rounds, and with how much noise. */
export interface Stage {
  rounds: [number, number];
  what: string;
  values: number;
  /** discrete Gaussian noise of 2^noise steps */
  noise: number;
  /** sums are sent modulo 2^modulus */
  modulus: number;
  /** the L2 norm of what one record adds, at most, in steps */
  sensitivity: number;
}

export type Domain = { kind: "box"; centre: number | number[]; radius: number | number[] } | { kind: "plan" };

export type NoisySums = { name: "noisy-sums"; limits: Limits; stages: Stage[] };

export type MechanismSpec =
  | { name: "none" }
  | NoisySums
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

/** A column of a table: its name, and the public ends of its scale, if it has any. */
export interface Column {
  name: string;
  low: number | null;
  high: number | null;
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
  /** `largest`: the raw value of the brightest pixel; `columns`: of a table, in the model's order, where they have names */
  input: {
    shape: number[]; mean: number[]; std: number[]; kind: "image" | "features"; largest?: number;
    columns?: Column[] | null;
  };
  classes: string[];
  model: Model;
  loss: "cross-entropy" | "one-versus-rest";
  training: Training;
  upload: {
    what: "weights" | "update" | "sums";
    values: number;
    layers: { name: string; first: number; size: number }[];
    samples: null | { kind: "noisy"; limit: number; what: string; mechanism: MechanismSpec };
    /** the L2 norm to which the server shortens longer reports; every plan announces it */
    norm: number | null;
  };
  strengths: Strength[];
  /** plans of the first `bare` rounds hold no arrays */
  plan: { step: string; settings: Record<string, unknown>; arrays: Record<string, number[]>; bare: number };
  budget: { limit: number; delta: number; basis: "proven" | "claimed"; adjacency: string; adversary: string } | null;
  choices: { noise: number; spending: Spending; accuracy: number | null; alone: number | null }[];
  statement: { title: string; text: string; sentences: string[] };
}

const LAYERS = ["flatten", "dense", "conv", "max-pool", "relu", "elu", "tanh"];
const MECHANISMS = ["none", "noisy-sums", "two-point", "sign", "laplace", "gaussian"];
/** values of a model at most: a page that trains more would stand still */
export const LARGEST_MODEL = 2 ** 22;
/** rounds of a schedule at most, as of a client's limits.rounds */
export const MOST_ROUNDS = 1000;
/** steps, or epochs, of a round at most: a round takes minutes and not days */
export const MOST_STEPS = 10_000;

/** whole unit vectors are kept in 16 bits, and so are whitened records */
/** Of what records are divided by: with less, the server could choose whose records are too large to join with. */
const SMALLEST_STD = 2 ** -40;
const LONGEST_VECTOR = 2 ** 15 - 1;
/** residuals at most, so that sums of products stay below 2^53 */
const LONGEST_RESIDUAL = 2 ** 15;
/** entries of a plan's matrix and centre at most: sums of products stay below 2^53 */
const LARGEST_FACTOR = 2 ** 16;
const LARGEST_CENTRE = 2 ** 40;
const MODULUS: [number, number] = [8, 48];
const NOISE_BITS: [number, number] = [4, 30];

/** Kinds of change that a guarantee can be about, from the strongest protection on. */
export const ADJACENCIES = ["client", "record-replace", "record-add-remove", "label", "coordinate"] as const;

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
  checkBudget(task);
  return task;
}

function checkInput({ input, classes }: Task): void {
  need(isObject(input) && Array.isArray(input.shape) && input.shape.every((side) => whole(side, 1, 10_000)), "the shape of records is not known");
  need(input.shape.length === 1 || input.shape.length === 3, "records are lists of features, or channels x height x width");
  const sized = (list: unknown) => Array.isArray(list) && (list.length === 1 || list.length === input.shape[0]) && list.every(Number.isFinite);
  need(sized(input.mean) && sized(input.std) && input.std.every((std) => std >= SMALLEST_STD), "the constants of normalisation do not fit the records");
  const columns = input.columns ?? null;
  const named = (column: unknown) => isObject(column) && typeof column.name === "string" && column.name.trim() !== "";
  need(columns === null || (Array.isArray(columns) && input.shape.length === 1 && columns.length === input.shape[0] && columns.every(named)), "the columns of the table do not fit the records");
  need(Array.isArray(classes) && classes.length >= 2 && classes.length <= 256, "a task has from 2 to 256 classes");
}

function checkModel({ model, input, classes, loss, training }: Task): void {
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
  const seen = training?.kind === "sums" ? [training.maps * training.cells] : input.shape;
  need(shapeAfter(model.layers, seen).join() === String(classes.length), "the model does not end in one score per class");
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

function checkTraining(task: Task): void {
  const { training } = task;
  need(isObject(training), "the training is not described");
  if (training.kind === "sums") return checkSums(task, training);
  need(isObject(training.optimiser), "the training is not described");
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

function checkSums({ input, model, loss, strengths, rounds }: Task, training: SumsTraining): void {
  const { extractor, bias, clip } = training;
  need(isObject(extractor) && extractor.kind === "scattering", `this page knows no features called ${String(extractor?.kind)}: reload the page`);
  need(input.shape.length === 3, "scattering takes images");
  need(bias > 0 && bias <= 1 && clip >= 1e-30 && clip <= 1e30, "the bias and the clip of a linear head are not described");
  const layers = model.layers.filter(({ kind }) => kind !== "flatten");
  need(loss === "cross-entropy" && layers.length === 1 && layers[0]!.kind === "dense", "sums are of a linear model under cross-entropy");
  need(model.parameters.length === 2 && model.parameters[0]!.shape.length === 2, "a linear model has weights and biases");
  need(Array.isArray(strengths), "what a page releases is not described");
  for (const { mechanism } of strengths) {
    need(mechanism?.name === "noisy-sums" && isObject(mechanism.limits) && Array.isArray(mechanism.stages), "the noise of sums is not described");
    const { unit, row, residual } = mechanism.limits;
    need(whole(unit, 1, LONGEST_VECTOR) && whole(row, 1, LONGEST_VECTOR) && whole(residual, 1, LONGEST_RESIDUAL), "the lengths of whole vectors are not described");
    let next = 1;
    for (const stage of mechanism.stages) {
      need(isObject(stage) && Array.isArray(stage.rounds) && stage.rounds[0] === next && whole(stage.rounds[1], next, rounds.count), "the stages of sums do not follow each other");
      need(whole(stage.noise, ...NOISE_BITS) && whole(stage.modulus, ...MODULUS), "the noise or the modulus of sums is not described");
      next = stage.rounds[1] + 1;
    }
    need(next === rounds.count + 1, "the stages of sums do not cover all rounds");
  }
}

/** What is summed in a round. */
export function stageOf({ stages }: NoisySums, round: number): Stage {
  const found = stages.find(({ rounds: [first, last] }) => first <= round && round <= last);
  if (!found) throw new Refused(`this page cannot take part: what is summed in round ${round} is not described`);
  return found;
}

function checkUpload({ upload, model, plan, training, strengths }: Task): void {
  const sums = training.kind === "sums";
  need(isObject(upload) && (sums ? ["sums"] : ["weights", "update"]).includes(upload.what), "what is uploaded is not described");
  need(!sums || (upload.samples === null && upload.norm === null), "sums leave alone, and as long as they are");
  need(upload.values === model.size, "pages send every value of the model");
  need(upload.samples === null || upload.samples.kind === "noisy", "a number of records may leave with noise only");
  need(isObject(plan) && plan.step === "report" && isObject(plan.arrays) && isObject(plan.settings), "the plan is not described");
  need(upload.norm === null ? plan.settings["norm"] === undefined : Number(plan.settings["norm"]) === upload.norm && upload.norm > 0, "plans announce another norm than the task");
  need(whole(plan.bare, 0, sums ? 1 : 0), "the plans of the first rounds are not described");
  need(canonical(plan.arrays["parameters"] ?? null) === canonical([model.size]), "a plan must hold the parameters of the model");
  if (!sums) return;
  const { maps } = training;
  const shapes = { parameters: [model.size], left: [maps, maps], centre: [maps] };
  const sizes = plan.bare ? [(maps * (maps + 1)) / 2 + maps, model.size] : [model.size];
  for (const { mechanism } of strengths) {
    const fits = mechanism.name === "noisy-sums" && canonical(mechanism.stages.map(({ values }) => values)) === canonical(sizes);
    need(fits && (plan.bare === 0 || mechanism.stages[0]!.rounds[1] === 1), "what is summed does not fit the features");
  }
  need(canonical(plan.arrays) === canonical(shapes), "a plan must hold the parameters of the model and what records are whitened by");
}

function checkStrengths({ strengths, clients, training, upload }: Task): void {
  need(Array.isArray(strengths) && strengths.length >= 1, "what a page releases is not described");
  const slots = strengths.flatMap((strength) => strength.clients).sort((a, b) => a - b);
  need(slots.length === clients && slots.every((slot, i) => slot === i), "every slot must have one strength");
  for (const { mechanism, releases } of strengths) {
    need(isObject(mechanism) && MECHANISMS.includes(mechanism.name), `this page knows no mechanism called ${String(mechanism?.name)}: reload the page`);
    need(training.kind !== "private" || mechanism.name === "none", "what private training made is sent as it is");
    need(training.kind === "sums" || mechanism.name !== "noisy-sums", "noisy sums are of sums");
    need(Array.isArray(releases) && releases.length >= 1, "what leaves is not described");
    need(upload.samples === null || releases.length >= 2, "the number of records has no line of its own");
  }
}

/** What is said of a budget, and counted in its terms, is about one that there can be. */
function checkBudget({ budget }: Task): void {
  if (budget === null || budget === undefined) return;
  const { limit, delta, basis, adjacency } = budget;
  need(Number.isFinite(limit) && limit > 0 && Number.isFinite(delta) && delta >= 0 && delta < 1, "the budget of this federation is none");
  need(["proven", "claimed"].includes(basis) && (ADJACENCIES as readonly string[]).includes(adjacency), "the budget of this federation is about nothing that this page knows");
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
  if (canonical(shapes) !== canonical(round <= task.plan.bare ? {} : task.plan.arrays)) not("tensors of other names or shapes");
  for (const { values } of plan.arrays.values()) {
    if (!values.every((value) => Number.isFinite(value))) not("numbers that are not finite");
  }
  if (task.training.kind !== "sums") return;
  for (const [name, most] of [["left", LARGEST_FACTOR], ["centre", LARGEST_CENTRE]] as const) {
    const fits = (value: number) => Number.isInteger(value) && Math.abs(value) <= most;
    if (!(plan.arrays.get(name)?.values.every(fits) ?? true)) not("a whitening that is not of whole numbers within reach");
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
