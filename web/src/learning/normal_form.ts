/**
 * The normal form of one example's features: group norm, then one length for all, as a whole vector (docs/bits.md). Nothing
 * of it depends on other examples; sums of whole numbers stay below 2^53, the rest is one rounded operation at a time.
 */
import { exponentOf } from "../bits/discrete.ts";
import { Refused } from "../wire/refusal.ts";
import { aim, rint, roundWithin } from "./whole.ts";

/** steps of a value once its group has the deviation 1 */
const GROUP_STEPS = 2 ** 12;

export class NormalForm {
  /** values of one group */
  readonly #each: number;
  /** values further from their group's mean count as so far: squares of a group add up to 2^53 at most */
  readonly #farthest: number;
  readonly #values: Float64Array;
  readonly #aim: number;

  /** For features `[maps, cells]` in groups of consecutive maps, and whole vectors of norm at most `limit`. */
  constructor(maps: number, cells: number, groups: number, readonly limit: number) {
    if (!(Number.isInteger(groups) && groups >= 1 && maps % groups === 0)) {
      throw new Refused(`this page cannot take part: ${maps} maps do not form ${groups} groups of equal size`);
    }
    this.#each = (maps / groups) * cells;
    this.#farthest = 2 ** Math.floor((53 - exponentOf(this.#each - 1)) / 2);
    this.#values = new Float64Array(maps * cells);
    this.#aim = aim(limit, maps * cells);
  }

  /** The whole vector of one example's features, themselves whole numbers. */
  whole(features: ArrayLike<number>): Float64Array {
    for (let first = 0; first < this.#values.length; first += this.#each) this.#normGroup(features, first);
    let squares = 0;
    for (const value of this.#values) squares += value * value;
    const found = new Float64Array(this.#values.length);
    roundWithin(this.#values, this.#aim / Math.max(Math.sqrt(squares), 1), this.limit, found);
    return found;
  }

  #normGroup(features: ArrayLike<number>, first: number): void {
    const [values, each, farthest] = [this.#values, this.#each, this.#farthest];
    let sum = 0;
    for (let i = first; i < first + each; i += 1) sum += features[i]!;
    const mean = sum / each;
    let squares = 0;
    for (let i = first; i < first + each; i += 1) {
      const value = Math.max(-farthest, Math.min(farthest, rint(features[i]! - mean)));
      values[i] = value;
      squares += value * value;
    }
    const deviation = Math.sqrt(squares / each + 1);
    for (let i = first; i < first + each; i += 1) values[i] = rint((values[i]! / deviation) * GROUP_STEPS);
  }
}
