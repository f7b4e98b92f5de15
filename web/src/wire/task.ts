/** The task of docs/web-protocol.md: what a federation asks of a page, agreed to before joining. Unknown is refused. */
import { canonical, isObject, type Plan } from "./frames.ts";
import { Refused } from "./refusal.ts";
import {
  type Check, fields, flag, like, list, map, number, oneOf, orList, orNull, orWord, positive, some, tagged, text, whole,
} from "./schema.ts";

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
  plan: { step: string; settings: Record<string, string>; arrays: Record<string, number[]>; bare: number };
  budget: { limit: number; delta: number; basis: "proven" | "claimed"; adjacency: string; adversary: string } | null;
  choices: { noise: number; spending: Spending; accuracy: number | null; alone: number | null }[];
  statement: { title: string; text: string; sentences: string[] };
}

/** values of a model at most: a page that trains more would stand still */
export const LARGEST_MODEL = 2 ** 22;
/** rounds of a schedule at most, as of a client's limits.rounds */
export const MOST_ROUNDS = 1000;
/** steps, or epochs, of a round at most: a round takes minutes and not days */
export const MOST_STEPS = 10_000;

/** Records are divided by this at least: with less, the server could choose which records are too large to join with. */
const SMALLEST_STD = 2 ** -40;
/** raw values of the brightest pixel: 1 and 255 are usual */
const BRIGHTEST: [number, number] = [2 ** -10, 2 ** 16];
/** whole unit vectors are kept in 16 bits, and so are whitened records */
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

// --- the form of a task: every field with its type and its range

const name = like(/./, "a name");
const sha256 = like(/^[0-9a-f]{64}$/, "64 hexadecimal digits");
const share = number(0, 1);
const usual = number(1e-12, 1e12);
const delta = number(0, 1 - 2 ** -53);
const epsilon = orWord("infinite", number(0));
const basis = oneOf("proven", "claimed");
const adjacency = oneOf(...ADJACENCIES);
const count = whole(1);
const round = whole(1, MOST_ROUNDS);
const rounds = list(round, 2, 2);
const values = whole(1, LARGEST_MODEL);
const bits = whole(1, 2 ** 31);

/** A figure that an account can count; bits that were shuffled have `tau`, and older pages wrote no `eta`. */
export const LOSS = tagged("type", {
  Pure: { epsilon: number(0), count },
  Metric: { alpha: number(0), distance: number(0), count },
  RandomizedBit: { t_min: bits, count },
  Gaussian: { mu: number(0), eta: number(0), tau: number(0) },
  PoissonGaussian: { q: share, sigma: positive, steps: count },
  Infinite: { why: text },
}, { RandomizedBit: { tau: number(0) }, PoissonGaussian: { eta: number(0), tau: number(0) } });

const LAYER = tagged("kind", {
  flatten: { name }, relu: { name }, elu: { name }, tanh: { name },
  dense: { name, inputs: values, outputs: values },
  conv: { name, inputs: values, outputs: values, kernel: whole(1, 1000), padding: whole(0, 1000) },
  "max-pool": { name, size: oneOf(2) },
});

const OPTIMISER = ((shared: Record<string, Check>): Check => tagged("name", {
  sgd: { ...shared, momentum: share, nesterov: flag },
  adam: { ...shared, beta1: share, beta2: share, epsilon: number(0) },
  rmsprop: { ...shared, rho: share, epsilon: number(0), momentum: share },
}))({ lr: positive, weight_decay: number(0), decayed: list(text), decay: number(0) });

const TRAINING = tagged("kind", {
  plain: {
    optimiser: OPTIMISER, epochs: orNull(whole(1, MOST_STEPS)), steps: orNull(whole(1, MOST_STEPS)), batch: whole(0, 2 ** 31), shuffle: flag,
    drop_last: flag, records: orNull(fields({ portion: whole(0, 2 ** 31), sampling: share, schedule: oneOf("continues", "restarts") })),
  },
  private: {
    optimiser: OPTIMISER, clip: usual, noise: usual, rate: number(1e-12, 1), threshold: whole(0, 2 ** 32), expected_batch: usual,
    steps: whole(1, MOST_STEPS), resolution: whole(4, 24),
  },
  sums: {
    extractor: tagged("kind", { scattering: { scales: whole(1, 6), angles: whole(1, 32), orders: whole(1, 2) } }),
    maps: whole(1, 2 ** 16), cells: whole(1, 2 ** 16), roots: whole(0, 4), groups: whole(0, 2 ** 16), bias: number(Number.MIN_VALUE, 1),
    clip: number(1e-30, 1e30),
  },
});

const domain = tagged("kind", { plan: {}, box: { centre: orList(number(-1e30, 1e30)), radius: orList(number(1e-30, 1e30)) } });
const digits = like(/^[1-9][0-9]{0,99}$/, "a whole number above 0 in digits");
const mechanisms: Record<string, Record<string, Check>> = {
  none: {},
  "noisy-sums": {
    limits: fields({ unit: whole(1, LONGEST_VECTOR), row: whole(1, LONGEST_VECTOR), residual: whole(1, LONGEST_RESIDUAL) }),
    stages: list(fields({ rounds, what: text, values: whole(1), noise: whole(...NOISE_BITS), modulus: whole(...MODULUS), sensitivity: positive }), 1, 2),
  },
  "two-point": { t_min: bits, domain },
  sign: { t_min: bits, thresholds: list(whole(0, 2 ** 31 - 1), 4097, 4097), domain },
  laplace: {
    steps: whole(1, 2 ** 26), rate: list(digits, 2, 2), negative: whole(0, 2 ** 32), limit: whole(1), domain,
    digits: list(fields({ shift: whole(0, 40), size: whole(2, 2 ** 15), sha256 }, { weights: text }), 1, 64),
  },
  gaussian: { steps: whole(1, 2 ** 26), sigma: positive, levels: whole(1), reach: whole(1), limit: whole(1), domain, sha256 },
};
const MECHANISM = tagged("name", mechanisms, { gaussian: { weights: text } });

const CLAIM = fields({ epsilon: number(0), delta: share, formula: text, adjacency, adversary: text, covers: oneOf("release", "schedule") });
const GUARANTEE = fields({ adversary: text, adjacency, basis: text, loss: LOSS, epsilon, delta });
const SPENDING = fields({ basis, adjacency, adversary: text, delta, epsilon: list(epsilon) });
const STRENGTH = fields({
  clients: list(whole(0, 2 ** 24)), epsilon: orNull(number(0)), mechanism: MECHANISM,
  releases: list(fields({ rounds, what: text, claimed: orNull(CLAIM), guarantees: list(GUARANTEE) }), 1), spending: list(SPENDING),
});

const TASK = fields({
  protocol: oneOf(2), federation: name, coordinator: sha256, terms: sha256, recipe_digest: text, title: text, summary: text,
  paper: orNull(text), method: text, clients: whole(1, 2 ** 24), rounds: fields({ count: round, quorum: whole(0, 2 ** 24), deadline: orNull(number(0)) }),
  input: fields({ shape: list(whole(1, 10_000), 1, 3), mean: list(number(-1e30, 1e30), 1), std: list(number(SMALLEST_STD, 1e30), 1), kind: oneOf("image", "features") }, {
    largest: number(...BRIGHTEST), columns: orNull(list(fields({ name: like(/\S/, "a name"), low: orNull(number(-1e30, 1e30)), high: orNull(number(-1e30, 1e30)) }))),
  }),
  classes: list(text, 2, 256),
  model: fields({ name: text, layers: list(LAYER, 1, 1000), parameters: list(fields({ name, shape: list(values, 1, 4), first: whole(0), size: values })), size: values }),
  loss: oneOf("cross-entropy", "one-versus-rest"),
  training: TRAINING,
  upload: fields({
    what: oneOf("weights", "update", "sums"), values, layers: list(fields({ name, first: whole(0), size: values }), 1), norm: orNull(positive),
    samples: orNull(fields({ kind: oneOf("noisy"), limit: whole(1, 2 ** 31), what: text, mechanism: tagged("name", { laplace: mechanisms["laplace"]! }) })),
  }),
  strengths: list(STRENGTH, 1),
  plan: fields({
    step: oneOf("report"), settings: map(text), bare: whole(0, 1),
    arrays: some({ parameters: list(values, 1, 1), left: list(values, 2, 2), centre: list(values, 1, 1), range: list(values, 2, 2) }),
  }),
  budget: orNull(fields({ limit: positive, basis, adjacency, adversary: text, delta })),
  choices: list(fields({ noise: usual, spending: SPENDING, accuracy: orNull(share), alone: orNull(share) })),
  statement: fields({ title: text, text, sentences: list(text) }),
}, { name: text, expected: orNull(fields({ accuracy: share, low: share, high: share, seeds: count, participants: count })) });

/** The task, if this page can carry it out as a whole. */
export function readTask(given: unknown): Task {
  const task = given as Task;
  need(isObject(task), "a task is an object");
  need(task.protocol === 2, `this page speaks version 2 of the protocol, the server ${String(task.protocol).slice(0, 20)}: reload the page`);
  TASK(task, "task");
  checkInput(task);
  checkModel(task);
  checkTraining(task);
  checkUpload(task);
  checkStrengths(task);
  return task;
}

function checkInput({ input }: Task): void {
  const { shape, mean, std, kind, columns = null } = input;
  need(shape.length === (kind === "image" ? 3 : 1), "records are lists of features, or channels x height x width");
  need([mean, std].every(({ length }) => length === 1 || length === shape[0]), "the constants of normalisation do not fit the records");
  need(columns === null || (kind === "features" && columns.length === shape[0]), "the columns of the table do not fit the records");
}

function checkModel({ model, input, classes, training }: Task): void {
  const own = model.layers.flatMap(parametersOf);
  need(canonical(own) === canonical(model.parameters.map(({ name, shape }) => ({ name, shape }))), "the parameters of the model are not those of its layers");
  const first = filled(model.parameters.map(({ shape, ...place }) => ({ ...place, values: shape.reduce((product, side) => product * side, 1) })));
  need(first === model.size, "the parameters of the model do not fill its vector");
  const seen = training.kind === "sums" ? [training.maps * training.cells] : input.shape;
  need(shapeAfter(model.layers, seen).join() === String(classes.length), "the model does not end in one score per class");
}

/** Weights and biases of a layer. */
function parametersOf(layer: Layer): { name: string; shape: number[] }[] {
  if (layer.kind !== "dense" && layer.kind !== "conv") return [];
  const window = layer.kind === "conv" ? [layer.kernel, layer.kernel] : [];
  return [{ name: `${layer.name}.weight`, shape: [layer.outputs, layer.inputs, ...window] }, { name: `${layer.name}.bias`, shape: [layer.outputs] }];
}

/** Where pieces end that follow each other from 0 on. */
function filled(pieces: readonly { name: string; first: number; size: number; values?: number }[]): number {
  let next = 0;
  for (const { name, first, size, values = size } of pieces) {
    need(first === next && size === values, `${name} is not where it should be`);
    next += size;
  }
  return next;
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
      need(now.length === 3 && Math.min(...now) >= 2, `the layer ${layer.name} needs images of 2 x 2 pixels or more`);
      now = [now[0]!, Math.floor(now[1]! / 2), Math.floor(now[2]! / 2)];
    }
  }
  return now;
}

function checkTraining(task: Task): void {
  const { training } = task;
  if (training.kind === "sums") checkSums(task);
  if (training.kind === "private") need(training.threshold === Math.floor(training.rate * 2 ** 32), "the threshold of private sampling is not that of its rate");
  if (training.kind === "plain") need((training.epochs === null) !== (training.steps === null), "training goes by epochs or by steps");
}

function checkSums({ input, model, loss, strengths, rounds }: Task): void {
  need(input.shape.length === 3, "scattering takes images");
  const layers = model.layers.filter(({ kind }) => kind !== "flatten");
  need(loss === "cross-entropy" && layers.length === 1 && layers[0]!.kind === "dense", "sums are of a linear model under cross-entropy");
  for (const { mechanism } of strengths) {
    need(mechanism.name === "noisy-sums", "the noise of sums is not described");
    let next = 1;
    for (const stage of mechanism.stages) {
      const [first, last] = stage.rounds;
      need(first === next && first <= last && last <= rounds.count, "the stages of sums do not follow each other");
      next = last + 1;
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
  need(sums === (upload.what === "sums"), "what is uploaded is not described");
  need(!sums || (upload.samples === null && upload.norm === null), "sums leave alone, and as long as they are");
  need(upload.values === model.size && filled(upload.layers) === model.size, "pages send every value of the model");
  need(upload.norm === null ? plan.settings["norm"] === undefined : Number(plan.settings["norm"]) === upload.norm, "plans announce another norm than the task");
  need(sums || plan.bare === 0, "the plans of the first rounds are not described");
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
  const slots = strengths.flatMap((strength) => strength.clients).sort((a, b) => a - b);
  need(slots.length === clients && slots.every((slot, i) => slot === i), "every slot must have one strength");
  for (const { mechanism, releases } of strengths) {
    const ranges = "domain" in mechanism && mechanism.domain.kind === "box" ? [mechanism.domain.centre, mechanism.domain.radius] : [];
    need(ranges.every((range) => typeof range === "number" || range.length === upload.layers.length), "a box has another number of layers than the model");
    need(training.kind !== "private" || mechanism.name === "none", "what private training made is sent as it is");
    need(training.kind === "sums" || mechanism.name !== "noisy-sums", "noisy sums are of sums");
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
