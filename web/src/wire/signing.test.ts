import { describe, expect, test } from "vitest";
import { coordinator, fromHex, golden, publicKey, signed, toHex } from "../golden.ts";
import { readPlan } from "./frames.ts";
import { isFor, isSigned, keyAfter, readEnvelope } from "./signing.ts";

const { key, step, clients, terms, envelope_hex, rotation, next, next_envelope_hex } = golden.signing;
const envelope = () => readEnvelope(fromHex(envelope_hex));

describe("an envelope that Python signed", () => {
  test("is read, and its signature holds", async () => {
    const found = envelope();
    const plan = await readPlan(found.message);
    expect([found.federation, found.round, toHex(found.plan)]).toEqual(["bakery", 7, toHex(plan.hash.subarray(0, 16))]);
    expect(Array.from({ length: 40 }, (_, k) => k).filter((k) => isFor(found, k))).toEqual(clients);
    expect(await isSigned(found, step, fromHex(key))).toBe(true);
    expect(toHex(found.terms)).toBe(terms);
    expect(toHex(signed(found.message, { federation: "bakery", round: 7, terms, clients }))).toBe(envelope_hex);
    expect(publicKey(coordinator)).toBe(key);
  });

  test("holds for no other step and no other key", async () => {
    expect(await isSigned(envelope(), "prepare", fromHex(key))).toBe(false);
    expect(await isSigned(envelope(), step, fromHex(next))).toBe(false);
  });

  test("holds with no byte changed, wherever it is", async () => {
    const whole = fromHex(envelope_hex);
    for (let at = 4; at < whole.length; at += 1) {
      const changed = whole.slice();
      changed[at]! ^= 1;
      const refused = await Promise.resolve().then(() => isSigned(readEnvelope(changed), step, fromHex(key))).catch(() => false);
      expect(refused, `byte ${at}`).toBe(false);
    }
  });
});

describe("a rotation", () => {
  test("of Python's hands over to the next key", async () => {
    const after = await keyAfter(key, [rotation]);
    expect(toHex(after)).toBe(next);
    expect(await isSigned(readEnvelope(fromHex(next_envelope_hex)), step, after)).toBe(true);
    expect(await isSigned(envelope(), step, after), "the old key signs no more").toBe(false);
  });

  test.each([
    ["by another key", () => keyAfter(next, [rotation])],
    ["twice", () => keyAfter(key, [rotation, rotation])],
    ["cut off", () => keyAfter(key, [rotation.slice(2)])],
    ["of no key", () => keyAfter("00", [])],
  ])("%s is refused", async (_, make) => {
    await expect(make()).rejects.toThrow(/key/);
  });
});
