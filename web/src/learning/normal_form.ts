/**
 * The normal form of one record's features: square roots, groups of maps with mean 0 and deviation 1, then one length for all,
 * as a whole vector (docs/bits.md; sordino.learning.unit_vectors). Nothing of it depends on other records; sums of whole
 * numbers stay below 2^53, the rest is one rounded operation at a time.
 */
import { exponentOf } from "../bits/discrete.ts";
import { Refused } from "../wire/refusal.ts";
import { aim, rint, roundWithin } from "./whole.ts";

/** steps of a feature */
const VALUE_STEPS = 2 ** 20;
/** features beyond it, in these steps, count as it */
const LARGEST = 2 ** 22;
/** steps of a value once its group has the deviation 1 */
const GROUP_STEPS = 2 ** 12;
const MOST_VALUES = 2 ** 16;
const MOST_ROOTS = 4;

/** The form of a record's features: maps of cells, how often the square root is taken, and groups of maps (0: none). */
export interface Form {
  maps: number;
  cells: number;
  groups: number;
  roots: number;
}

/** Refuses a form that Python would not have. */
export function checkForm({ maps, cells, groups, roots }: Form): void {
  const fits = [maps, cells].every((size) => Number.isInteger(size) && size >= 1) && maps * cells < MOST_VALUES;
  if (!fits) throw new Refused(`this page cannot take part: records have 1 to ${MOST_VALUES - 1} features, not ${maps} x ${cells}`);
  if (!(Number.isInteger(groups) && groups >= 0 && (groups === 0 || maps % groups === 0))) {
    throw new Refused(`this page cannot take part: ${maps} maps do not form ${groups} groups of equal size`);
  }
  if (!(Number.isInteger(roots) && roots >= 0 && roots <= MOST_ROOTS)) {
    throw new Refused(`this page cannot take part: square roots are taken 0 to ${MOST_ROOTS} times, not ${roots}`);
  }
}

export class NormalForm {
  /** values of one group */
  readonly #each: number;
  /** values further from their group's mean count as so far: squares of a group add up to 2^53 at most */
  readonly #farthest: number;
  /** what values without groups are multiplied by, for the same reason */
  readonly #shorter: number;
  readonly #values: Float64Array;
  readonly #aim: number;

  /** For whole vectors of norm at most `limit`. */
  constructor(readonly form: Form, readonly limit: number) {
    checkForm(form);
    const size = form.maps * form.cells;
    this.#each = form.groups ? size / form.groups : size;
    this.#farthest = 2 ** Math.floor((53 - exponentOf(this.#each - 1)) / 2);
    this.#shorter = 2 ** -Math.max(0, Math.floor(exponentOf(size - 1) / 2) - 4);
    this.#values = new Float64Array(size);
    this.#aim = aim(limit, size);
  }

  /** The whole vector of one record's features, themselves whole numbers of 2^-20. */
  whole(features: ArrayLike<number>): Float64Array {
    const values = this.#values;
    for (let i = 0; i < values.length; i += 1) values[i] = this.#rooted(features[i]!);
    if (this.form.groups) {
      for (let first = 0; first < values.length; first += this.#each) this.#normGroup(first);
    } else {
      for (let i = 0; i < values.length; i += 1) values[i] = rint(values[i]! * this.#shorter);
    }
    let squares = 0;
    for (const value of values) squares += value * value;
    const found = new Float64Array(values.length);
    roundWithin(values, this.#aim / Math.max(Math.sqrt(squares), 1), this.limit, found);
    return found;
  }

  #rooted(feature: number): number {
    let value = Number.isFinite(feature) ? rint(Math.max(-LARGEST, Math.min(LARGEST, feature))) : 0;
    for (let i = 0; i < this.form.roots; i += 1) value = rint(Math.sqrt(Math.abs(value) * VALUE_STEPS)) * Math.sign(value);
    return value;
  }

  #normGroup(first: number): void {
    const [values, each, farthest] = [this.#values, this.#each, this.#farthest];
    let sum = 0;
    for (let i = first; i < first + each; i += 1) sum += values[i]!;
    const mean = sum / each;
    let squares = 0;
    for (let i = first; i < first + each; i += 1) {
      const value = Math.max(-farthest, Math.min(farthest, rint(values[i]! - mean)));
      values[i] = value;
      squares += value * value;
    }
    const deviation = Math.sqrt(squares / each + 1);
    for (let i = first; i < first + each; i += 1) values[i] = rint((values[i]! / deviation) * GROUP_STEPS);
  }
}
