/** What leaves with a report, by the page's own figures; a server that states less is refused. */
import { buildMechanism } from "../bits/build.ts";
import { FARTHEST, type Slack, discreteGaussian, gridFor } from "../bits/discrete.ts";
import type { ValueLoss } from "../bits/mechanisms.ts";
import { momentsSensitivity } from "../learning/second_moments.ts";
import type { Plan } from "../wire/frames.ts";
import { Refused } from "../wire/refusal.ts";
import { type Release, type StatedLoss, type Strength, type Task, stageOf } from "../wire/task.ts";
import type { OwnRelease } from "./account.ts";
import { adjacencyOf } from "./account.ts";

/** Of the report on one round's plan. `noise` is the person's own noise multiplier, where the task offers a choice. */
export async function ownReleases(
  task: Task, strength: Strength, round: number, noise: number | null, plan?: Plan,
): Promise<OwnRelease[]> {
  const stated = strength.releases.filter(({ rounds: [first, last] }) => first <= round && round <= last);
  const [upload, ...others] = stated;
  if (!upload) throw new Refused(`this page cannot take part: what leaves in round ${round} is not described`);
  const { samples } = task.upload;
  if (samples !== null && round === 1 && !others.some(({ what }) => what === samples.what)) {
    throw new Refused("this page cannot take part: the number of records would leave, and is not among what is described");
  }
  const own = await guarantees(task, strength, round, noise, plan);
  checkStated(upload, noise === null ? own : await guarantees(task, strength, round, null, plan));
  const first: OwnRelease = { what: upload.what, guarantees: own, claimed: noise === null ? upload.claimed : null };
  return [first, ...(await Promise.all(others.map((other) => beside(task, other))))];
}

/** Guarantees by adjacency. */
type Own = OwnRelease["guarantees"];

async function guarantees(task: Task, strength: Strength, round: number, noise: number | null, plan?: Plan): Promise<Own> {
  if (task.training.kind === "private") return privately(task, noise);
  return task.training.kind === "sums" ? ofSums(task, strength, round) : through(task, strength, plan);
}

/** Of a sum over all records: one moves it by what this page lets it, and by no more than is stated. */
function ofSums({ training, plan }: Task, { mechanism }: Strength, round: number): Own {
  if (training.kind !== "sums" || mechanism.name !== "noisy-sums") throw new Error("not sums");
  const stage = stageOf(mechanism, round);
  const { unit, row, residual } = mechanism.limits;
  const own = round <= plan.bare ? momentsSensitivity(unit) : row * residual;
  if (!(own <= stage.sensitivity * (1 + 1e-12))) {
    throw new Refused(`this page cannot take part: one record moves "${stage.what}" by ${own} steps, and not by ${stage.sensitivity} at most`);
  }
  const sensitivity = Math.max(own, stage.sensitivity);
  const noise = discreteGaussian(stage.noise);
  return ofNoise(sensitivity, noise.sigma, noise.slack, { q: 1, steps: 1, values: stage.values });
}

/** Of `steps` sums over batches of rate q, where one record moves each by `sensitivity`, plus discrete Gaussian noise. */
function ofNoise(sensitivity: number, drawn: number, { sigma, eta, tau }: Slack, { q, steps, values }: { q: number; steps: number; values: number }): Own {
  const all = steps * values;
  const reach = FARTHEST * drawn;
  const proven: StatedLoss = { type: "PoissonGaussian", q, sigma: sigma / sensitivity, steps, eta: all * eta, tau: all * tau };
  const faint = (part: string): StatedLoss => ({ type: "Infinite", why: `the noise is below ${part} of what one record can add` });
  return [
    { adversary: "server", adjacency: "record-add-remove", loss: sensitivity > reach ? faint("a sixteenth") : proven },
    { adversary: "server", adjacency: "record-replace", loss: 2 * sensitivity > reach ? faint("an eighth") : proven },
  ];
}

/** Of DP-SGD in whole numbers: a record moves a sum by `clip` grid steps at most, and the noise lacks a slack of a Gaussian. */
function privately({ training, upload }: Task, noise: number | null): Own {
  if (training.kind !== "private") throw new Error("not private training");
  const { clip, noise: drawn } = gridFor(chosenNoise(training.noise, noise), training.resolution);
  return ofNoise(clip, drawn.sigma, drawn.slack, { q: training.rate, steps: training.steps, values: upload.values });
}

/** The noise multiplier to train with: the person's, which may only be larger than the task's. */
export function chosenNoise(agreed: number, own: number | null): number {
  if (own !== null && !(own >= agreed && Number.isFinite(own))) {
    throw new Refused(`your own noise multiplier must be at least ${agreed}, got ${own}`);
  }
  return own ?? agreed;
}

/** Ranges that travel in plans change no figure but Gaussian's grid, which has one radius: any range stands for all. */
async function through(task: Task, { mechanism }: Strength, plan?: Plan): Promise<Own> {
  const layers = task.upload.layers;
  const needsPlan = "domain" in mechanism && mechanism.domain.kind === "plan" && !plan;
  const spec = needsPlan ? { ...mechanism, domain: { kind: "box" as const, centre: 0, radius: 1 } } : mechanism;
  const { loss } = await buildMechanism(spec, layers, plan);
  return [
    { adversary: "server", adjacency: "client", loss: ofValues(loss, task.upload.values) },
    { adversary: "server", adjacency: "coordinate", loss: ofValues(loss, 1) },
  ];
}

/** The loss of `count` values that are drawn independently of each other. */
export function ofValues(loss: ValueLoss, count: number): StatedLoss {
  switch (loss.type) {
    case "Pure":
      return { ...loss, count };
    case "RandomizedBit":
      return { ...loss, count };
    case "Gaussian":
      return { type: "Gaussian", mu: loss.mu * Math.sqrt(count), eta: count * loss.eta, tau: count * loss.tau };
    case "Infinite":
      return loss;
  }
}

/** What leaves beside the values: the number of records with noise; anything else as it is stated. */
async function beside(task: Task, stated: Release): Promise<OwnRelease> {
  const { samples } = task.upload;
  if (samples !== null && stated.what === samples.what) {
    const { loss } = await buildMechanism(samples.mechanism, [{ first: 0, size: 1 }]);
    const guarantees = [{ adversary: "server", adjacency: "client", loss: ofValues(loss, 1) }];
    checkStated(stated, guarantees);
    return { what: stated.what, guarantees, claimed: stated.claimed };
  }
  return { what: stated.what, guarantees: stated.guarantees, claimed: stated.claimed };
}

/** Refuses a task that states another loss than the numbers of its own mechanism have. */
function checkStated(stated: Release, own: Own): void {
  for (const guarantee of stated.guarantees) {
    const computed = own.find(({ adjacency }) => adjacency === adjacencyOf(guarantee.adjacency));
    const open = guarantee.loss.type === "Infinite" && guarantee.epsilon !== "infinite"; // what is shown is `epsilon`
    if (!computed || guarantee.adversary !== "server" || open || !alike(guarantee.loss, computed.loss)) {
      throw new Refused(
        `this page cannot take part: the server's figures for "${stated.what}" are not those of the noise that it asks for`,
      );
    }
  }
}

function alike(stated: StatedLoss, own: StatedLoss): boolean {
  if (stated.type !== own.type) return false;
  if (stated.type === "Infinite") return true;
  return Object.entries(own).every(([key, value]) => {
    const other = (stated as unknown as Record<string, unknown>)[key];
    if (typeof value !== "number" || typeof other !== "number") return value === other;
    const slack = key === "eta" || key === "tau" ? 1e-5 : 1e-9;
    return Math.abs(value - other) <= slack * Math.max(Math.abs(value), Math.abs(other));
  });
}
