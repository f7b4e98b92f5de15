/** Tables of what others may say: the type and the range of every number, text and list. What does not fit is refused before anything else looks at it. */
import { isObject } from "./frames.ts";
import { Refused } from "./refusal.ts";

/** Refuses a value of another kind; `where` names the value. */
export type Check = (value: unknown, where: string) => void;

function kind(wanted: string, fits: (value: unknown) => boolean): Check {
  return (value, where) => {
    if (!fits(value)) throw new Refused(`this page cannot take part: ${where} must be ${wanted}, got ${shown(value)}`);
  };
}

function shown(value: unknown): string {
  return (typeof value === "number" ? String(value) : (JSON.stringify(value) ?? "nothing")).slice(0, 40);
}

const within = (value: unknown, low: number, high: number): boolean => typeof value === "number" && value >= low && value <= high && Number.isFinite(value);

export const number = (low: number, high = Number.MAX_VALUE): Check => kind(`a number from ${low} to ${high}`, (value) => within(value, low, high));

/** A number above 0. */
export const positive = number(Number.MIN_VALUE);

export const whole = (low: number, high: number = Number.MAX_SAFE_INTEGER): Check =>
  kind(`a whole number from ${low} to ${high}`, (value) => Number.isInteger(value) && within(value, low, high));

export const flag: Check = kind("true or false", (value) => typeof value === "boolean");

export const text: Check = kind("a text", (value) => typeof value === "string");

export const like = (pattern: RegExp, wanted: string): Check => kind(wanted, (value) => typeof value === "string" && pattern.test(value));

export const oneOf = (...allowed: readonly (string | number)[]): Check =>
  kind(`one of ${allowed.join(", ")}`, (value) => (allowed as readonly unknown[]).includes(value));

export const orNull = (check: Check): Check => (value, where) => {
  if (value !== null) check(value, where);
};

/** A number, or a word in its place. */
export const orWord = (word: string, check: Check): Check => (value, where) => {
  if (value !== word) check(value, where);
};

/** One value, or a list of them. */
export const orList = (check: Check): Check => (value, where) => (Array.isArray(value) ? list(check, 1)(value, where) : check(value, where));

export function list(check: Check, least = 0, most = Infinity): Check {
  const range = most === Infinity ? `${least} or more` : least === most ? `${least}` : `${least} to ${most}`;
  const known = kind(`a list of ${range}`, (value) => Array.isArray(value) && value.length >= least && value.length <= most);
  return (value, where) => {
    known(value, where);
    (value as unknown[]).forEach((each, i) => check(each, `${where}[${i}]`));
  };
}

const object: Check = kind("an object", isObject);

/** All of these fields, any of the `optional` ones, and no others. */
export function fields(needed: Record<string, Check>, optional: Record<string, Check> = {}): Check {
  return (value, where) => {
    object(value, where);
    const own = value as Record<string, unknown>;
    for (const name of Object.keys(own)) {
      if (!Object.hasOwn(needed, name) && !Object.hasOwn(optional, name)) throw new Refused(`this page cannot take part: it does not know ${where}.${name.slice(0, 40)}: reload the page`);
    }
    for (const [name, check] of Object.entries(needed)) check(own[name], `${where}.${name}`);
    for (const [name, check] of Object.entries(optional)) if (Object.hasOwn(own, name)) check(own[name], `${where}.${name}`);
  };
}

/** Any of these fields. */
export const some = (optional: Record<string, Check>): Check => fields({}, optional);

/** Fields of any name. */
export const map = (check: Check): Check => (value, where) => {
  object(value, where);
  for (const [name, each] of Object.entries(value as Record<string, unknown>)) check(each, `${where}.${name.slice(0, 40)}`);
};

/** Objects of several kinds; the field `key` says which. */
export function tagged(key: string, kinds: Record<string, Record<string, Check>>, optional: Record<string, Record<string, Check>> = {}): Check {
  const tag = oneOf(...Object.keys(kinds));
  const checks = new Map(Object.entries(kinds).map(([name, needed]) => [name, fields({ [key]: tag, ...needed }, optional[name])]));
  return (value, where) => {
    object(value, where);
    const name = (value as Record<string, unknown>)[key];
    tag(name, `${where}.${key}`);
    checks.get(name as string)!(value, where);
  };
}

/** True if a value passes a check. */
export function passes(check: Check, value: unknown): boolean {
  try {
    check(value, "it");
    return true;
  } catch (error) {
    if (error instanceof Refused) return false;
    throw error;
  }
}
