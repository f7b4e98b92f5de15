/** Mechanisms from a task's whole numbers; tables are built here by docs/bits.md, and must have the hash that is named. */
import { type Plan, hex } from "../wire/frames.ts";
import { Refused } from "../wire/refusal.ts";
import type { Domain, MechanismSpec } from "../wire/task.ts";
import type { AliasTable } from "./alias.ts";
import { type Box, Gaussian, Laplace, type Mechanism, Plain, RandomisedSign, TwoPoint, noiseOnGrid } from "./mechanisms.ts";
import { type GaussianNoise, GeometricNoise } from "./noise.ts";
import { rational } from "./rational.ts";

/** Layers of the vector that a domain may tell apart. */
export type Pieces = readonly { first: number; size: number }[];

/** The array of a plan that holds centres and radii `[2, layers]`, for domains of the kind `plan`. */
export const RANGE = "range";

export async function buildMechanism(spec: MechanismSpec, pieces: Pieces, plan?: Plan): Promise<Mechanism> {
  try {
    return await built(spec, pieces, plan);
  } catch (error) {
    if (error instanceof RangeError) throw new Refused(`this page cannot take part: the mechanism: ${error.message}`);
    throw error;
  }
}

async function built(spec: MechanismSpec, pieces: Pieces, plan?: Plan): Promise<Mechanism> {
  switch (spec.name) {
    case "none":
      return new Plain();
    case "noisy-sums":
      throw new RangeError("sums are exact until the privacy room adds their noise");
    case "two-point":
      return new TwoPoint(spec.t_min, boxOf(spec.domain, pieces, plan));
    case "sign": {
      const mechanism = new RandomisedSign(spec.thresholds, boxOf(spec.domain, pieces, plan));
      same("t_min", mechanism.loss.type === "RandomizedBit" && mechanism.loss.t_min, spec.t_min);
      return mechanism;
    }
    case "laplace": {
      const [top] = spec.digits;
      if (!top || !(top.shift >= 0 && top.shift <= 40 && top.size >= 2 && top.size <= 2 ** 15)) {
        throw new RangeError("the digits of a Laplace table are not described");
      }
      const tables = JSON.stringify([spec.rate, spec.negative, spec.digits]);
      const noise = await remembered(geometric, tables, () => geometricNoise(spec, top.shift, top.size));
      const mechanism = new Laplace(spec.steps, noise, boxOf(spec.domain, pieces, plan));
      same("limit", mechanism.limit, spec.limit);
      return mechanism;
    }
    case "gaussian": {
      const tables = JSON.stringify([spec.steps, spec.sigma, spec.levels, spec.sha256]);
      const noise = await remembered(gaussians, tables, () => gaussianNoise(spec));
      const mechanism = new Gaussian(spec.steps, noise, boxOf(spec.domain, pieces, plan));
      same("limit", mechanism.limit, spec.limit);
      return mechanism;
    }
  }
}

type Spec<Name> = Extract<MechanismSpec, { name: Name }>;

// Tables take a moment to build, and every round needs the same ones.
const geometric = new Map<string, Promise<GeometricNoise>>();
const gaussians = new Map<string, Promise<GaussianNoise>>();

function remembered<T>(known: Map<string, Promise<T>>, key: string, make: () => Promise<T>): Promise<T> {
  const found = known.get(key) ?? make();
  known.set(key, found);
  return found;
}

async function geometricNoise(spec: Spec<"laplace">, shift: number, size: number): Promise<GeometricNoise> {
  const rate = rational(BigInt(spec.rate[0]), BigInt(spec.rate[1]));
  if (rate.n <= 0n) throw new RangeError("a rate must be above zero");
  const noise = new GeometricNoise(rate, shift, size);
  same("negative", noise.negative, spec.negative);
  same("number of digits", noise.digits.length, spec.digits.length);
  for (const [i, digit] of noise.digits.entries()) {
    same("shift", digit.shift, spec.digits[i]!.shift);
    same("table", await hashOf(digit.table), spec.digits[i]!.sha256);
  }
  return noise;
}

async function gaussianNoise(spec: Spec<"gaussian">): Promise<GaussianNoise> {
  const noise = noiseOnGrid(spec.steps, spec.sigma);
  same("levels", noise.levels, spec.levels);
  same("table", await hashOf(noise.table), spec.sha256);
  return noise;
}

function same(what: string, own: unknown, stated: unknown): void {
  if (own !== stated) throw new RangeError(`its ${what} is not that of docs/bits.md`);
}

async function hashOf(table: AliasTable): Promise<string> {
  const view = new DataView(new ArrayBuffer(8 * table.weights.length));
  table.weights.forEach((weight, i) => view.setBigUint64(8 * i, weight, true));
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", view.buffer)));
}

function boxOf(domain: Domain, pieces: Pieces, plan?: Plan): Box {
  if (domain.kind === "box") return checked({ centre: spread(domain.centre, pieces), radius: spread(domain.radius, pieces) });
  const range = plan?.arrays.get(RANGE);
  if (domain.kind !== "plan" || !range || range.values.length !== 2 * pieces.length) {
    throw new RangeError("its ranges are not in the plan");
  }
  const rows = [range.values.subarray(0, pieces.length), range.values.subarray(pieces.length)];
  return checked({ centre: spread([...rows[0]!], pieces), radius: spread([...rows[1]!], pieces) });
}

/** One float32 for all values, or one for each. */
function spread(given: number | number[], pieces: Pieces): Float32Array {
  if (typeof given === "number") return Float32Array.of(given);
  if (given.length !== pieces.length) throw new RangeError("its box has another number of layers than the model");
  const last = pieces.at(-1)!;
  const values = new Float32Array(last.first + last.size);
  pieces.forEach(({ first, size }, i) => values.fill(given[i]!, first, first + size));
  return values;
}

function checked(box: Box): Box {
  if (!box.radius.every((radius) => radius >= 1e-30 && radius <= 1e30) || !box.centre.every((c) => Math.abs(c) <= 1e30)) {
    throw new RangeError("its box must have radii from 1e-30 to 1e30");
  }
  return box;
}
