import "fake-indexeddb/auto";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { buildMechanism } from "../bits/build.ts";
import { gridFor } from "../bits/discrete.ts";
import { Keystream } from "../bits/keystream.ts";
import { makeBody } from "../bits/report.ts";
import { type Signing, coordinator, fromHex, golden, publicKey, rotation, signed, signingKey, stream, tasks, toHex } from "../golden.ts";
import { canonical, readPlan, writeAnswer } from "../wire/frames.ts";
import { Refused } from "../wire/refusal.ts";
import { readTask } from "../wire/task.ts";
import { Ledger } from "./ledger.ts";
import { PrivacyRoom, type Ruling } from "./privacy.ts";
import { ownReleases } from "./releases.ts";
import type { Choice } from "./terms.ts";

let name = "";
let ledger: Ledger;
let count = 0;

beforeEach(async () => {
  name = `ledger ${(count += 1)}`;
  ledger = await Ledger.open(name);
});
afterEach(() => ledger.close());

const silo = () => structuredClone(tasks["webfed-digits"]);
const choice = (limit = 4): Choice => ({ budget: { limit, delta: 1e-4, basis: "proven", adjacency: "record-add-remove" } });

/** A plan as the server writes it, in its envelope. */
function plan(task: any, round: number, change: Change = {}): Uint8Array<ArrayBuffer> {
  return signed(unsigned(task, round, change), { federation: task.federation, round, terms: task.terms, ...change.signing });
}

interface Change {
  fill?: number;
  federation?: string;
  name?: string;
  signing?: Partial<Signing>;
}

function unsigned(task: any, round: number, change: Change = {}): Uint8Array<ArrayBuffer> {
  const { fill = 0.25, federation = task.federation, name = "parameters" } = change;
  const header = new TextEncoder().encode(
    canonical({ arrays: { [name]: [task.model.size] }, federation, round, settings: task.plan.settings }),
  );
  const values = new Uint8Array(new Float32Array(task.model.size).fill(fill).buffer);
  const bytes = new Uint8Array(8 + header.length + values.length);
  bytes.set([0x53, 0x50, 2, 0]);
  new DataView(bytes.buffer).setUint32(4, header.length, true);
  bytes.set(header, 8);
  bytes.set(values, 8 + header.length);
  return bytes;
}

async function opened(task = silo(), given = choice(), fresh?: () => Promise<Keystream>, client = 0): Promise<PrivacyRoom> {
  const room = fresh ? new PrivacyRoom(ledger, fresh) : new PrivacyRoom(ledger);
  await room.open({ task, choice: given, own: true });
  await room.welcome(client);
  return room;
}

async function answered(room: PrivacyRoom, task: any, round: number): Promise<Uint8Array> {
  const ruling = await room.judge("report", plan(task, round));
  expect(ruling.kind).toBe("train");
  return (await room.release(new Float32Array(task.model.size).fill(round), 100, null)).answer;
}

describe("tasks that a server compiled", () => {
  test.each(Object.keys(tasks))("%s is understood, and its stated figures are the page's own", async (federation) => {
    const task = readTask(tasks[federation]);
    const accept = { acceptClaimed: true, acceptUnbounded: true };
    await new PrivacyRoom(ledger).open({ task, choice: { ...choice(), ...accept }, own: true });
  });

  test("what a server's ledger would count, the page counts too", async () => {
    const task = silo();
    const { perRound, rounds } = await (await opened()).outlook({ task, choice: choice(), own: true });
    const stated: number[] = task.strengths[0].spending[0].epsilon;
    expect(rounds).toBe(task.rounds.count);
    stated.forEach((epsilon, k) => {
      expect(perRound[k]! / epsilon).toBeLessThan(1 + 1e-9);
      expect(perRound[k]! / epsilon).toBeGreaterThan(0.85); // Python's divergence is a bound, the page's the integral
    });
  });

  test("a louder choice costs what the task says, and is counted so", async () => {
    const task = silo();
    const louder = task.choices[1];
    const own = { ...choice(louder.spending.epsilon.at(-1)), noise: louder.noise };
    const { perRound } = await (await opened()).outlook({ task, choice: own, own: true });
    expect(perRound.at(-1)! / louder.spending.epsilon.at(-1)).toBeLessThan(1.02);
    expect(perRound.at(-1)! / louder.spending.epsilon.at(-1)).toBeGreaterThan(0.8);
  });

  test("every choice of noise has the loss of its own grid, slack included, and hardly any noise has none", async () => {
    const task = silo();
    const { rate: q, steps, resolution } = task.training;
    const lossOf = async (noise: number | null, changed = task) =>
      (await ownReleases(changed, changed.strengths[0], 1, noise))[0]!.guarantees.map(({ loss }) => loss as any);
    const [stated] = task.strengths[0].releases[0].guarantees;
    for (const { noise } of task.choices) {
      const [added, replaced] = await lossOf(noise);
      expect(replaced).toEqual(added);
      const { clip, noise: drawn } = gridFor(noise, resolution);
      expect(added).toMatchObject({ type: "PoissonGaussian", q, steps, sigma: Math.sqrt(4 ** 20 - 1 / 12) / clip });
      expect(drawn.bits).toBe(20);
      expect(added.sigma).toBeGreaterThanOrEqual(noise);
      expect(added.sigma).toBeLessThan(noise * 1.0001);
      for (const key of ["eta", "tau"]) expect(Math.abs(added[key] / stated.loss[key] - 1)).toBeLessThan(1e-9);
    }
    const faint = { ...task, training: { ...task.training, noise: 0.06 } };
    faint.strengths[0].releases[0].guarantees = [];
    expect((await lossOf(null, faint)).map(({ type }) => type)).toEqual(["Infinite", "Infinite"]);
    const least = { ...faint, training: { ...task.training, noise: 0.0626 } };
    expect((await lossOf(null, least)).map(({ type }) => type)).toEqual(["PoissonGaussian", "Infinite"]);
    const eighth = { ...faint, training: { ...task.training, noise: 0.1251 } };
    expect((await lossOf(null, eighth)).map(({ type }) => type)).toEqual(["PoissonGaussian", "PoissonGaussian"]);
  });

  test("a task with another grid than the noise that it states is refused", async () => {
    for (const resolution of [3, 25, 7.5, undefined]) {
      await expect(opened({ ...silo(), training: { ...silo().training, resolution } })).rejects.toThrow(/training.resolution/);
    }
    await expect(opened({ ...silo(), training: { ...silo().training, resolution: 8 } })).rejects.toThrow(/are not those of the noise/);
    await expect(opened({ ...silo(), training: { ...silo().training, noise: 1e6 } })).rejects.toThrow(/8 are the least/);
  });

  test("a server that states a smaller loss than its noise has is refused", async () => {
    const task = silo();
    task.strengths[0].releases[0].guarantees[0].loss.sigma *= 2;
    await expect(opened(task)).rejects.toThrow(/are not those of the noise/);
    const bits = structuredClone(tasks["two-point-digits"]);
    bits.strengths[0].releases[0].guarantees[0].loss.count -= 1;
    await expect(opened(bits)).rejects.toThrow(/are not those of the noise/);
  });

  test("a task beyond the page's limits on rounds and steps is refused", async () => {
    for (const change of [
      (task: any) => (task.rounds.count = 1001), (task: any) => (task.training.steps = 10_001), (task: any) => (task.training.steps = 1e9),
    ]) {
      const task = silo();
      change(task);
      await expect(opened(task)).rejects.toThrow(/rounds.count|training.steps/);
    }
  });

  test("a budget that can be none is refused: what was spent before would not be shown beside it", async () => {
    for (const change of [{ limit: null }, { limit: -1 }, { delta: 1 }, { basis: "sure" }, { adjacency: "odd" }]) {
      const task = silo();
      Object.assign(task.budget, change);
      await expect(opened(task)).rejects.toThrow(Refused);
    }
  });

  test("figures that could not be counted in other terms are refused too: written down, they would end all counting", async () => {
    const claim = { epsilon: -1, delta: 0, formula: "", adjacency: "client", adversary: "server", covers: "release" };
    const stated = (changed: object) => ({ rounds: [1, 20], what: "nothing", claimed: null, guarantees: [{ adversary: "server", adjacency: "client", basis: "proven", loss: { type: "Pure", epsilon: 0, count: 1 }, epsilon: 0, delta: 0 }], ...changed });
    const odd = (adjacency: string, loss: object) => [...stated({}).guarantees, { adversary: "server", adjacency, basis: "proven", loss, epsilon: 1, delta: 0 }];
    for (const changed of [{ claimed: claim }, { claimed: { ...claim, epsilon: 1, adjacency: "odd" } }, { guarantees: odd("label", { type: "Odd" }) }, { guarantees: odd("label", { type: "Pure", epsilon: 1, count: 0.5 }) }]) {
      const task = silo();
      task.strengths[0].releases.push(stated(changed));
      await expect(opened(task)).rejects.toThrow(Refused);
      expect(await ledger.firstBudget(task.federation)).toBeNull();
    }
    const task = silo();
    task.strengths[0].releases.push(stated({}));
    await opened(task);
  });

  test("a server cannot give back what was spent with a figure below zero", async () => {
    const losses = [{ type: "Pure", epsilon: -1, count: 1 }, { type: "Pure", epsilon: 1, count: -1 }, { type: "RandomizedBit", t_min: 2 ** 32 - 1, count: 1 }];
    for (const loss of losses) {
      const task = silo();
      const guarantee = { adversary: "server", adjacency: "record-add-remove", basis: "", loss, epsilon: 0, delta: 0 };
      task.strengths[0].releases.push({ rounds: [1, 20], what: "nothing", claimed: null, guarantees: [guarantee] });
      await expect(opened(task)).rejects.toThrow(/guarantees\[0\].loss/);
    }
    const task = structuredClone(tasks["personalized-digits"]);
    task.strengths[0].releases[0].claimed.epsilon = -1;
    const claimed: Choice = { budget: { limit: 100, delta: 0.01, basis: "claimed", adjacency: "client" }, acceptClaimed: true };
    await expect(opened(task, claimed)).rejects.toThrow(/claimed.epsilon/);
  });

  test("a number of records that nobody described does not leave", async () => {
    const task = structuredClone(tasks["webfed-laplace"]);
    const [weights] = task.strengths[0].releases;
    task.strengths[0].releases = [{ ...weights, rounds: [1, 1] }, { ...weights, rounds: [2, 3] }];
    await expect(opened(task, { ...choice(), acceptClaimed: true })).rejects.toThrow(/number of records would leave/);
  });

  test("what has no bound is not shown with one", async () => {
    const task = structuredClone(tasks["fedavg-digits"]);
    task.strengths[0].releases[0].guarantees[0].epsilon = 0.5;
    await expect(opened(task, { ...choice(), acceptUnbounded: true })).rejects.toThrow(/are not those of the noise/);
  });

  test("private training with numbers that doubles cannot tell apart is refused", async () => {
    const task = silo();
    task.training.clip = 5e-324;
    await expect(opened(task)).rejects.toThrow(/training.clip/);
  });

  test("less noise than agreed cannot be chosen", async () => {
    await expect(opened(silo(), { ...choice(), noise: 0.1 })).rejects.toThrow(/at least/);
  });

  test("claimed figures, and what has no protection at all, need the person's word", async () => {
    const task = structuredClone(tasks["webfed-laplace"]);
    const claimed: Choice = { budget: { limit: 100, delta: 0, basis: "claimed", adjacency: "client" } };
    await expect(opened(task, claimed)).rejects.toThrow(/claimed and proven by nothing/);
    const open = structuredClone(tasks["fedavg-digits"]);
    await expect(opened(open)).rejects.toThrow(/without any protection/);
    const room = await opened(open, { ...choice(), acceptUnbounded: true });
    expect((await room.judge("report", plan(open, 1))).kind).toBe("train");
    expect((await room.budget()).afterNext).toBe(Infinity);
  });
});

describe("a plan", () => {
  test("that was agreed to is trained on, and its report has the encoder's bytes for its key", async () => {
    for (const federation of ["webfed-digits", "two-point-digits", "webfed-laplace", "personalized-digits"]) {
      const task = structuredClone(tasks[federation]);
      task.federation += "'s own";
      const accept = { acceptClaimed: true, acceptUnbounded: true };
      const terms: Choice = { budget: { limit: 1e9, delta: 1e-4, basis: "proven", adjacency: federation === "webfed-digits" ? "record-add-remove" : "client" }, ...accept };
      const room = new PrivacyRoom(ledger, stream);
      await room.open({ task, choice: terms, own: false });
      await room.welcome(0);
      const bytes = plan(task, 1);
      expect(await room.judge("report", bytes)).toMatchObject({ kind: "train", round: 1 });
      const trained = new Float32Array(task.model.size).fill(0.5);
      const { answer, insight } = await room.release(trained, 100, null);
      const read = await readPlan(unsigned(task, 1));
      const sent = task.upload.what === "weights" ? trained : trained.map((v) => v - 0.25);
      const { body } = await makeBody(task, task.strengths[0].mechanism, read, sent, 100, null, await stream());
      expect(toHex(answer)).toBe(toHex(writeAnswer(read, body)));
      expect(insight.clear).toEqual(task.training.kind === "private" ? null : new Float32Array(task.model.size).fill(0.25));
      expect(insight.sent).toHaveLength(task.model.size);
      if (task.training.kind !== "private") expect(insight.sent).not.toEqual(insight.clear);
    }
  });

  test("that the coordinator did not sign is refused, costs nothing, and the true one is answered afterwards", async () => {
    const task = silo();
    const stranger = signingKey("11".repeat(32));
    const room = await opened();
    const genuine = plan(task, 1);
    const other = plan({ ...task, federation: "another" }, 1);
    const forged: [string, Uint8Array<ArrayBuffer>][] = [
      ["no envelope at all", unsigned(task, 1)],
      ["signed by somebody else", plan(task, 1, { signing: { key: stranger } })],
      ["of another federation of the same coordinator", other],
      ["for another step", plan(task, 1, { signing: { step: "prepare" } })],
      ["for other terms, such as those of a rehearsal", plan(task, 1, { signing: { terms: "11".repeat(32) } })],
      ["for other clients", plan(task, 1, { signing: { clients: [1, 2] } })],
      ["with the round changed", Uint8Array.from(genuine, (byte, i) => (i === 4 ? 2 : byte))],
      ["with other parameters", Uint8Array.from(genuine, (byte, i) => (i === genuine.length - 1 ? byte ^ 1 : byte))],
      ["cut off", genuine.slice(0, 50)],
    ];
    for (const [what, bytes] of forged) {
      expect(await room.isSigned("report", bytes), what).toBe(false);
      expect((await room.judge("report", bytes)).kind, what).toBe("unsigned");
    }
    expect((await room.judge("keys", genuine)).kind, "asked for in another step").toBe("unsigned");
    expect((await room.judge("report", plan(task, 2, { signing: { round: 1 } }))).kind, "of another round").toBe("refused");
    expect(await ledger.entries()).toEqual([]);
    expect((await room.judge("report", genuine)).kind).toBe("train");
    expect((await room.judge("report", plan(task, 2, { signing: { key: stranger } }))).kind).toBe("unsigned");
    await room.release(new Float32Array(task.model.size), 100, null); // what was asked for before the forgery still stands
  });

  test("is signed by the key that the last one handed over to, also after a reload, and by no other", async () => {
    const task = silo();
    const [second, stranger] = ["22", "33"].map((byte) => signingKey(byte.repeat(32))) as [any, any];
    const room = await opened();
    await expect(room.welcome(0, [rotation(coordinator, stranger, stranger)])).rejects.toThrow(/did not sign/);
    await room.welcome(0, [rotation(coordinator, second)]);
    for (const again of [room, await opened()]) {
      expect((await again.judge("report", plan(task, 1))).kind).toBe("unsigned");
      expect((await again.judge("report", plan(task, 1, { signing: { key: second } }))).kind).toBe("train");
      await expect(again.welcome(0, [rotation(coordinator, stranger)]), "by a key that signs no more").rejects.toThrow(/another key/);
    }
  });

  test("needs the key that was agreed to first", async () => {
    await opened();
    await expect(opened({ ...silo(), coordinator: publicKey(signingKey("11".repeat(32))) })).rejects.toThrow(/another key/);
  });

  test("needs the terms that were agreed to first, also after a rotation", async () => {
    const room = await opened();
    await room.welcome(0, [rotation(coordinator, signingKey("22".repeat(32)))]);
    await expect(opened({ ...silo(), terms: "11".repeat(32) })).rejects.toThrow(/other terms/);
    await opened();
  });

  test("answered once gets the same bytes again, also after a reload", async () => {
    const task = silo();
    const first = await answered(await opened(), task, 1);
    ledger.close();
    ledger = await Ledger.open(name);
    const again = await (await opened()).judge("report", plan(task, 1));
    expect(again.kind === "again" && toHex(again.answer)).toBe(toHex(first));
    expect(await ledger.entries()).toHaveLength(1);
  });

  test("that differs from the one answered in its round is refused", async () => {
    const room = await opened();
    await answered(room, silo(), 1);
    expect(await room.judge("report", plan(silo(), 1, { fill: 0.5 }))).toMatchObject({ kind: "refused", reason: /another plan/ as any });
  });

  test.each([
    ["of an earlier round", (t: any) => plan(t, 1), /came after round 2/],
    ["of another federation", (t: any) => plan(t, 3, { federation: "other" }), /another federation/],
    ["beyond the rounds", (t: any) => plan(t, t.rounds.count + 1), /round 21 of 20/],
    ["with other tensors", (t: any) => plan(t, 3, { name: "weights" }), /other names or shapes/],
    ["with numbers that are not finite", (t: any) => plan(t, 3, { fill: NaN }), /not finite/],
    ["cut off", (t: any) => signed(unsigned(t, 3).slice(0, 100), { federation: t.federation, round: 3, terms: t.terms }), /cut off|shorter/],
  ])("%s is refused", async (_, make, reason) => {
    const room = await opened();
    await answered(room, silo(), 2);
    const ruling = (await room.judge("report", make(silo()))) as Extract<Ruling, { kind: "refused" }>;
    expect(ruling.kind).toBe("refused");
    expect(ruling.reason).toMatch(reason);
  });

  test("of another step is refused", async () => {
    expect(await (await opened()).judge("prepare", plan(silo(), 1, { signing: { step: "prepare" } }))).toMatchObject({ kind: "refused" });
  });

  test("is answered with the noise that was counted, whatever number the server gives this page meanwhile", async () => {
    const task = structuredClone(tasks["two-point-digits"]);
    const terms: Choice = { budget: { limit: 1e9, delta: 1e-4, basis: "proven", adjacency: "client" } };
    const room = await opened(task, terms, stream);
    const bytes = plan(task, 1);
    expect((await room.judge("report", bytes)).kind).toBe("train");
    await room.welcome(task.clients - 1); // the weakest protection of all
    const trained = new Float32Array(task.model.size).fill(0.5);
    const { answer } = await room.release(trained, 100, null);
    const read = await readPlan(unsigned(task, 1));
    const body = async (client: number) => {
      const { mechanism } = task.strengths.find(({ clients }: any) => clients.includes(client));
      return (await makeBody(task, mechanism, read, trained.map((v) => v - 0.25), 100, null, await stream())).body;
    };
    expect(toHex(answer)).toBe(toHex(writeAnswer(read, await body(0))));
    expect(toHex(await body(0))).not.toBe(toHex(await body(task.clients - 1)));
    const [entry] = await ledger.entries();
    expect(entry!.releases[0]!.guarantees[0]!.loss).toMatchObject({ t_min: task.strengths[0].mechanism.t_min });
  });

  test("whose difference to the result overflows is answered with no change, and written down", async () => {
    const task = silo();
    const room = await opened();
    expect((await room.judge("report", plan(task, 1, { fill: 3e38 }))).kind).toBe("train");
    const { answer } = await room.release(new Float32Array(task.model.size).fill(-3e38), 100, null);
    expect(answer.subarray(24).every((byte) => byte === 0)).toBe(true);
    expect(await ledger.entries()).toHaveLength(1);
  });

  test("cannot be released twice, nor without having been judged", async () => {
    const room = await opened();
    await answered(room, silo(), 1);
    await expect(room.release(new Float32Array(650), 1, null)).rejects.toThrow(/judge a plan first/);
  });
});

describe("a spent budget", () => {
  const limit = tasks["webfed-digits"].strengths[0].spending[0].epsilon[1]; // what two rounds cost

  test("declines, and says nothing more than that", async () => {
    const task = silo();
    const room = await opened(task, choice(limit));
    const { rounds } = await room.outlook({ task, choice: choice(limit), own: true });
    let round = 1;
    let ruling = await room.judge("report", plan(task, round));
    while (ruling.kind === "train") {
      await room.release(new Float32Array(task.model.size), 100, null);
      ruling = await room.judge("report", plan(task, (round += 1)));
    }
    expect(round).toBe(rounds + 1);
    expect(rounds).toBeGreaterThanOrEqual(2);
    expect(rounds).toBeLessThan(task.rounds.count);
    expect(ruling.kind).toBe("declined");
    const answer = (ruling as Extract<Ruling, { kind: "declined" }>).answer;
    expect(toHex(answer)).toBe(toHex(writeAnswer(await readPlan(unsigned(task, round)), null)));
    const { spent, afterNext } = await room.budget();
    expect(spent).toBeLessThanOrEqual(limit);
    expect(afterNext).toBeGreaterThan(limit);
  });

  test("stays spent after a reload, and for another federation with the same records", async () => {
    const task = silo();
    const first = await opened(task, choice(2.5));
    const { rounds } = await first.outlook({ task, choice: choice(2.5), own: true });
    await answered(first, task, 1);
    ledger.close();
    ledger = await Ledger.open(name);
    const other = silo();
    other.federation = "another";
    const room = await opened(other, choice(2.5));
    expect((await room.budget()).spent).toBeGreaterThan(1);
    let round = 1;
    while ((await room.judge("report", plan(other, round))).kind === "train") {
      await room.release(new Float32Array(task.model.size), 100, null);
      round += 1;
    }
    expect(round).toBe(rounds); // one less than without the round in the other federation
  });

  test("is the same figure beforehand wherever the slider stands, and counts the rounds that are left", async () => {
    const task = silo();
    const room = await opened(task);
    await answered(room, task, 1);
    const asked = (limit: number, done = 0) => room.outlook({ task, choice: choice(limit), own: true }, { done, usual: choice(1).budget });
    const [strong, usual, late] = [await asked(0.5), await asked(4), await asked(4, 18)];
    expect(strong.before).toBe(usual.before);
    expect(usual.before).toBe((await room.budget()).spent);
    expect(usual.terms).toEqual(choice().budget);
    expect([strong.rounds, usual.rounds, usual.perRound.length, late.rounds]).toEqual([0, 19, 19, 2]);
  });

  test("of one's own is not touched by a public sample", async () => {
    const task = silo();
    const sample = new PrivacyRoom(ledger);
    await sample.open({ task, choice: choice(), own: false });
    await sample.welcome(0);
    await answered(sample, task, 1);
    const other = silo();
    other.federation = "another";
    expect((await (await opened(other)).budget()).spent).toBe(0);
  });
});

describe("the ledger", () => {
  test("has a line for every release, with a chain of hashes over all of them", async () => {
    const room = await opened();
    for (const round of [1, 2, 4]) await answered(room, silo(), round);
    const lines = await room.ledger();
    expect(lines.map(({ round, sent }) => [round, sent])).toEqual([[1, "kept"], [2, "kept"], [4, "kept"]]);
    expect(lines[0]!.what).toEqual(["model update (DP-SGD)"]);
    expect(lines[2]!.spentAfter).toBeGreaterThan(lines[1]!.spentAfter);
    expect(await ledger.sound()).toBe(true);
    expect((await ledger.entries()).map(({ answer }) => answer === null)).toEqual([true, true, false]);
    await room.mark(4, "sent");
    await room.mark(4, "received");
    await room.mark(4, "sent");
    expect((await room.ledger())[2]!.sent).toBe("received");
  });

  test("that was changed by hand is found out", async () => {
    await answered(await opened(), silo(), 1);
    const [entry] = await ledger.entries();
    const db: IDBDatabase = await new Promise((resolve) => {
      const request = indexedDB.open(name);
      request.onsuccess = () => resolve(request.result);
    });
    const transaction = db.transaction("entries", "readwrite");
    transaction.objectStore("entries").put({ ...entry, round: 9 });
    await new Promise((resolve) => (transaction.oncomplete = resolve));
    db.close();
    expect(await ledger.sound()).toBe(false);
  });

  test("keeps one identity for a federation, and another for each other one", async () => {
    const first = await (await opened()).identity();
    ledger.close();
    ledger = await Ledger.open(name);
    const again = await (await opened()).identity();
    expect(again).toEqual(first);
    expect(first.id).toMatch(/^[0-9a-f]{32}$/);
    expect(first.proof).toMatch(/^[0-9a-f]{64}$/);
    const other = silo();
    other.federation = "another";
    expect((await (await opened(other)).identity()).id).not.toBe(first.id);
    await answered(await opened(), silo(), 3);
    const { last } = await (await opened()).identity();
    expect(last).toEqual({ round: 3, digest: toHex((await readPlan(unsigned(silo(), 3))).hash.subarray(0, 16)) });
  });

  test("writes no report of private training down that has no noise", async () => {
    const room = await opened();
    await room.judge("report", plan(silo(), 1));
    await expect(room.release(null, 1, null)).rejects.toThrow(/its noise at least/);
    expect(await ledger.entries()).toHaveLength(0);
  });

  test("writes two releases of one round for nobody", async () => {
    const [one, two] = [await opened(), await opened()];
    for (const room of [one, two]) await room.judge("report", plan(silo(), 1));
    const results = await Promise.allSettled([one.release(new Float32Array(650), 1, null), two.release(new Float32Array(650), 1, null)]);
    expect(results.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
    const failed = results.find(({ status }) => status === "rejected") as PromiseRejectedResult;
    expect(failed.reason.message).toMatch(/could not be written \(\w+\), so nothing was sent/);
    expect(await ledger.entries()).toHaveLength(1);
  });
});

test("a Laplace task counts the number of records once, and sends it ever after", async () => {
  const task = structuredClone(tasks["webfed-laplace"]);
  const claimed: Choice = { budget: { limit: 1e9, delta: 1e-4, basis: "proven", adjacency: "client" } };
  const room = await opened(task, claimed);
  const counts: number[] = [];
  for (const round of [1, 2]) {
    expect((await room.judge("report", plan(task, round))).kind).toBe("train");
    const { answer } = await room.release(new Float32Array(task.model.size), 100, null);
    counts.push(new DataView(answer.buffer).getUint32(24, true));
  }
  expect(counts[1]).toBe(counts[0]);
  expect((await ledger.entries()).map(({ releases }) => releases.length)).toEqual([2, 1]);
  const { loss } = await buildMechanism(golden.counts.mechanism, [{ first: 0, size: 1 }]);
  expect(loss).toMatchObject({ type: "Pure" });
  expect(fromHex("00ff")).toEqual(Uint8Array.of(0, 255));
});
