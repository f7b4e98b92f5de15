/**
 * What has been spent of a budget, valid even if a server chose every plan after seeing all earlier reports: the same
 * three sums as `sordino.privacy.accountant.Account`, which explains why they hold.
 *
 * A: the sum of pure epsilons; B: the sum of squares of Gaussian parameters, at 2/5 of delta; C: the sum of Renyi
 * divergences at one order, which the budget alone decides, at 2/5 of delta. What is spent is the smallest of the three.
 */
import { type Rational, exactly, rational, toNumber } from "../bits/rational.ts";
import { Refused } from "../wire/refusal.ts";
import { passes } from "../wire/schema.ts";
import { ADJACENCIES, type Claim, LOSS, type StatedLoss } from "../wire/task.ts";
import { absorbSlack, gaussianEpsilon, muOfPure } from "./gaussian.ts";
import { addedOrRemoved, epsilonOf, exchanged, pure } from "./renyi.ts";
import type { Adjacency, Budget } from "./terms.ts";

/** What leaves with one report, as the ledger writes it down. */
export interface OwnRelease {
  what: string;
  guarantees: { adversary: string; adjacency: string; loss: StatedLoss }[];
  claimed: Claim | null;
}

/** null: infinite */
type Amount = Rational | null;

interface Cost {
  pure: Amount;
  muSquared: Amount;
  renyi: Amount;
  tau: Amount;
}

const ZERO = rational(0n);
const FREE: Cost = { pure: ZERO, muSquared: ZERO, renyi: ZERO, tau: ZERO };
const UNPROVEN: Cost = { pure: null, muSquared: null, renyi: null, tau: ZERO };
/** covers the rounding of a handful of floating-point operations */
const ROUNDING = 1 + 1e-12;
const ORDERS = [
  1.01, 1.02, 1.05, ...Array.from({ length: 99 }, (_, k) => 1 + (k + 1) / 10), ...Array.from({ length: 54 }, (_, k) => k + 11),
  128, 256, 512, 1024,
];

export class Account {
  readonly #order: number | null;
  readonly #cost: Cost;
  readonly #schedules: ReadonlySet<string>;

  private constructor(readonly budget: Budget, order: number | null, cost: Cost, schedules: ReadonlySet<string>) {
    this.#order = order;
    this.#cost = cost;
    this.#schedules = schedules;
  }

  /** An account with nothing spent. */
  static opening(budget: Budget): Account {
    const usable = budget.basis === "proven" && budget.delta > 0;
    return new Account(budget, usable ? bestOrder(budget.limit, 0.4 * budget.delta) : null, FREE, new Set());
  }

  /**
   * This account with one more release to a federation in it, whether or not the budget permits it: ask `permits`.
   * A claim for a whole schedule is counted once in each federation.
   */
  after(release: OwnRelease, federation: string): Account {
    const schedules = new Set(this.#schedules);
    const schedule = JSON.stringify([federation, release.claimed]);
    const cost = this.budget.basis === "claimed" ? this.#claimedCost(release.claimed, schedule) : this.#provenCost(release);
    if (release.claimed?.covers === "schedule") schedules.add(schedule);
    if (Object.values(cost).some((amount: Amount) => amount !== null && amount.n < 0n)) {
      throw new Refused(`the server's figures for "${release.what.slice(0, 60)}" are below zero: nothing gives back what was spent`);
    }
    return new Account(this.budget, this.#order, sumOf(this.#cost, cost), schedules);
  }

  /** Epsilon spent at the budget's delta, on the budget's basis; infinite where nothing is proven. */
  get spent(): number {
    const spent = this.#spentExactly();
    if (spent === null) return Infinity;
    const value = toNumber(spent);
    return value <= this.budget.limit && !this.permits ? this.budget.limit * (1 + Number.EPSILON) : value;
  }

  /** Whether everything in this account stays within the limit. */
  get permits(): boolean {
    return atMost(this.#spentExactly(), decimal(this.budget.limit));
  }

  #spentExactly(): Amount {
    const { pure: total, tau } = this.#cost;
    if (this.budget.basis === "claimed") return atMost(tau, decimal(this.budget.delta)) ? total : null;
    return least(total, least(this.#gaussianSpent(), this.#renyiSpent()));
  }

  #gaussianSpent(): Amount {
    if (this.#cost.muSquared === null || !this.#tausFit()) return null;
    const mu = Math.sqrt(toNumber(this.#cost.muSquared)) * ROUNDING;
    return finite(gaussianEpsilon(mu, 0.4 * this.budget.delta) * ROUNDING);
  }

  #renyiSpent(): Amount {
    if (this.#order === null || this.#cost.renyi === null || !this.#tausFit()) return null;
    return finite(epsilonOf(this.#order, toNumber(this.#cost.renyi) * ROUNDING, 0.4 * this.budget.delta) * ROUNDING);
  }

  #tausFit(): boolean {
    const delta = decimal(this.budget.delta);
    return atMost(this.#cost.tau, rational(delta.n, delta.d * 10n));
  }

  /** A page's budget is one against the server: a claim about anybody who sees less pays nothing. */
  #claimedCost(claim: Claim | null, schedule: string): Cost {
    if (claim === null || claim.adversary !== "server" || !implies(claim.adjacency, this.budget.adjacency)) return UNPROVEN;
    if (this.#schedules.has(schedule)) return FREE;
    return { ...FREE, pure: decimal(claim.epsilon), tau: decimal(claim.delta) };
  }

  /** Cheapest proof for each sum: every guarantee of a release is true. */
  #provenCost(release: OwnRelease): Cost {
    const usable = release.guarantees
      .filter((guarantee) => guarantee.adversary === "server" && implies(guarantee.adjacency, this.budget.adjacency))
      .map((guarantee) => lossCost(guarantee.loss, guarantee.adjacency, this.#order));
    if (usable.length === 0) return UNPROVEN;
    const approximate = usable.reduce((best, cost) => (cheaper(cost, best) ? cost : best));
    return { ...approximate, pure: usable.map((cost) => cost.pure).reduce(least) };
  }
}

/** Refuses figures that no account can count, in whatever terms: once written down, they would end all counting. */
export function checkCountable(releases: readonly OwnRelease[], federation: string): void {
  for (const adjacency of ADJACENCIES) {
    for (const basis of ["proven", "claimed"] as const) {
      try {
        releases.reduce((sum, release) => sum.after(release, federation), Account.opening({ limit: 1, delta: 1e-5, basis, adjacency }));
      } catch (error) {
        if (error instanceof Refused) throw error;
        throw new Refused("the server states figures for what leaves that this page cannot count");
      }
    }
  }
}

/** The spelling of adjacencies in recipes and tasks; that of Python's own names is known too. */
export function adjacencyOf(name: string): Adjacency {
  const plain = name.replace("record (add/remove)", "record-add-remove").replace("record (replace)", "record-replace");
  if (!(ADJACENCIES as readonly string[]).includes(plain)) {
    throw new Error(`unknown adjacency ${name.slice(0, 40)}`);
  }
  return plain as Adjacency;
}

/** Whether protection of a change of one kind protects changes of another kind with the same figure. */
export function implies(given: string, wanted: Adjacency): boolean {
  const own = adjacencyOf(given);
  return own === wanted || own === "client" || (own === "record-replace" && wanted === "label");
}

function lossCost(loss: StatedLoss, adjacency: string, order: number | null): Cost {
  if (!passes(LOSS, loss)) return UNPROVEN; // of an earlier page, perhaps: nothing but numbers is counted
  switch (loss.type) {
    case "Infinite":
      return UNPROVEN;
    case "Pure":
      return pureCost(decimal(loss.epsilon), loss.count, order);
    case "Metric": {
      const [alpha, distance] = [decimal(loss.alpha), decimal(loss.distance)];
      return pureCost(rational(alpha.n * distance.n, alpha.d * distance.d), loss.count, order);
    }
    case "RandomizedBit":
      return loss.t_min === 2 ** 31 ? FREE : pureCost(decimal(bitEpsilon(loss.t_min) * (1 + 2 * Number.EPSILON)), loss.count, order);
    case "Gaussian":
      return gaussianCost(loss.mu, loss.eta, loss.tau, order);
    case "PoissonGaussian": {
      const { eta = 0, tau = 0 } = loss; // older pages wrote none
      const [reach, divergence] = adjacencyOf(adjacency) === "record-add-remove" ? [1, addedOrRemoved] : [2, exchanged];
      if (!(loss.q >= 1e-12 && loss.q < 1 && loss.sigma >= 1e-3 && loss.sigma <= 1e6)) {
        return gaussianCost((Math.sqrt(loss.steps) * reach) / loss.sigma, eta, tau, order);
      }
      const renyi = order === null ? null : up(divergence(loss.q, loss.sigma, order));
      return { ...UNPROVEN, renyi: plus(times(renyi, loss.steps), decimal(eta)), tau: decimal(tau) };
    }
  }
}

/** Exact epsilon of one randomised bit whose rarer value has probability t_min / 2^32. */
export function bitEpsilon(tMin: number): number {
  return Math.log1p((2 ** 32 - 2 * tMin) / tMin);
}

function pureCost(epsilon: Rational, count: number, order: number | null): Cost {
  const each = toNumber(epsilon);
  const mu = muOfPure(each);
  const renyi = order === null ? null : up(pure(each, order));
  return { pure: times(epsilon, count), muSquared: times(up(mu * mu), count), renyi: times(renyi, count), tau: ZERO };
}

function gaussianCost(mu: number, eta: number, tau: number, order: number | null): Cost {
  const absorbed = absorbSlack(mu, eta);
  const muSquared = up(absorbed * absorbed);
  const half = order === null ? null : exactly(order / 2);
  const renyi = half === null || muSquared === null ? null : rational(muSquared.n * half.n, muSquared.d * half.d);
  return { pure: mu === 0 && eta === 0 && tau === 0 ? ZERO : null, muSquared, renyi, tau: decimal(tau) };
}

/** The order at which a Gaussian history gets furthest before it meets the limit at delta. */
function bestOrder(limit: number, delta: number): number {
  const allowed = (order: number) => (limit - Math.log1p(-1 / order) + Math.log(delta * order) / (order - 1)) / order;
  return ORDERS.reduce((best, order) => (allowed(order) > allowed(best) ? order : best));
}

// --- exact amounts

/** The number as it is written in decimal: 0.1 is a tenth. */
export function decimal(value: number): Rational {
  const match = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(String(value));
  if (!match) throw new RangeError(`not a finite number: ${value}`);
  const [, sign, whole, fraction = "", exponent = "0"] = match;
  const digits = BigInt(whole! + fraction) * (sign ? -1n : 1n);
  const scale = Number(exponent) - fraction.length;
  return scale >= 0 ? rational(digits * 10n ** BigInt(scale)) : rational(digits, 10n ** BigInt(-scale));
}

const finite = (value: number): Amount => (Number.isFinite(value) ? exactly(value) : null);
const up = (value: number): Amount => finite(value * ROUNDING);
const plus = (a: Amount, b: Amount): Amount => (a && b ? rational(a.n * b.d + b.n * a.d, a.d * b.d) : null);
const times = (a: Amount, count: number): Amount => (a ? rational(a.n * BigInt(count), a.d) : null);
const atMost = (a: Amount, b: Amount): boolean => b === null || (a !== null && a.n * b.d <= b.n * a.d);
const least = (a: Amount, b: Amount): Amount => (atMost(a, b) ? a : b);

function sumOf(a: Cost, b: Cost): Cost {
  return {
    pure: plus(a.pure, b.pure), muSquared: plus(a.muSquared, b.muSquared), renyi: plus(a.renyi, b.renyi), tau: plus(a.tau, b.tau),
  };
}

function cheaper(a: Cost, b: Cost): boolean {
  for (const key of ["renyi", "muSquared", "tau"] as const) {
    if (!atMost(a[key], b[key])) return false;
    if (!atMost(b[key], a[key])) return true;
  }
  return false;
}
