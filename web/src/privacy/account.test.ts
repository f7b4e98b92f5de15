import { describe, expect, test } from "vitest";
import { golden } from "../golden.ts";
import { Account, type OwnRelease } from "./account.ts";
import { gaussianDelta, gaussianEpsilon, muOfPure } from "./gaussian.ts";
import { addedOrRemoved, exchanged } from "./renyi.ts";

describe("the page's own accounting", () => {
  test.each([
    // 2 sqrt(2) erfinv(tanh(epsilon/2)), by mpmath with 40 digits
    [1e-300, 1.2533141373155002e-300], [1e-8, 1.2533141373155002e-8], [0.0001, 0.0001253314137091364], [0.00010023, 0.00012561967596056394],
    [0.003, 0.0037599418067788847], [0.3, 0.3753919992445165], [1.99, 2.3474074139447083], [2, 2.3579614856472495],
    [20, 11.758418713653102], [700, 74.59015926529483],
  ])("the mu of a randomised bit of epsilon %d is not below the truth", (epsilon, mu) => {
    expect(muOfPure(epsilon)).toBeGreaterThan(mu);
    expect(muOfPure(epsilon) / mu).toBeLessThan(1 + 1e-14);
  });

  test("just above epsilon 1e-4 no mu is below its series, and above 700 none is stated", () => {
    for (let epsilon = 1e-4; epsilon < 1e-3; epsilon *= 1.0007) {
      const x = Math.tanh(epsilon / 2) / 2;
      const mu = 2 * Math.sqrt(2 * Math.PI) * x * (1 + (Math.PI / 3) * x * x); // up to a share of 1e-13 * epsilon
      expect(muOfPure(epsilon)).toBeGreaterThan(mu);
    }
    expect(muOfPure(700.1)).toBe(Infinity);
  });

  test("Renyi divergences of the sampled Gaussian are those of Python, which rounds up where the order is not whole", () => {
    for (const { q, sigma, order, adjacency, divergence } of golden.renyi) {
      const own = (adjacency === "record-add-remove" ? addedOrRemoved : exchanged)(q, sigma, order);
      const about = `q ${q}, sigma ${sigma}, order ${order}, ${adjacency}`;
      expect(own / divergence, about).toBeLessThan(1 + 1e-5);
      const least = Number.isInteger(order) ? divergence * (1 - 1e-9) - 1e-12 : 0.75 * divergence; // it adds its rounding
      expect(own, about).toBeGreaterThan(least);
    }
  });

  test("between whole orders it is the integral of its definition", () => {
    expect(addedOrRemoved(0.2, 1.5, 2.6)).toBeCloseTo(0.03048667912203625, 12); // scipy.integrate.quad
  });

  test("for a whole order the divergence is the binomial sum of its definition", () => {
    const [q, sigma, order] = [0.2, 1.5, 4];
    let sum = 0;
    for (let k = 0, choose = 1; k <= order; choose = (choose * (order - k)) / (k + 1), k += 1) {
      sum += choose * (1 - q) ** (order - k) * q ** k * Math.exp((k * k - k) / (2 * sigma * sigma));
    }
    expect(addedOrRemoved(q, sigma, order)).toBeCloseTo(Math.log(sum) / (order - 1), 12);
  });

  test("with hardly any noise the divergence is that of a release that samples nothing, and takes no time", () => {
    const begun = performance.now();
    expect(addedOrRemoved(0.01, 1e-3, 2048)).toBe(1024e6);
    expect(exchanged(0.01, 1e-3, 1024)).toBeLessThanOrEqual(2048e6);
    for (const sigma of [1e-3, 0.01, 0.05, 0.1, 0.3]) for (const order of [1.01, 2, 64, 1024, 2048]) {
      const [own, unsampled] = [addedOrRemoved(0.01, sigma, order), order / (2 * sigma * sigma)];
      expect(own).toBeLessThanOrEqual(unsampled);
      // one term of the binomial sum: all of the order's draws are taken
      expect(own).toBeGreaterThanOrEqual((unsampled + (order / (order - 1)) * Math.log(0.01)) * (1 - 1e-12));
    }
    expect(performance.now() - begun).toBeLessThan(5000); // by the integral alone: 10^10 points
  });

  test.each((golden.accounts as any[]).map((row, i) => ({ ...row, name: `${i}: ${row.budget.basis}, ${row.budget.adjacency}` })))(
    "$name", ({ budget, guarantees, claimed, spent }: any) => {
      const release: OwnRelease = { what: "-", guarantees, claimed };
      const sampled = guarantees[0].loss.type === "PoissonGaussian"; // of which Python takes a bound
      let account = Account.opening(budget);
      for (const expected of spent) {
        account = account.after(release, "a");
        if (expected === "infinite") expect(account.spent).toBe(Infinity);
        else expect(account.spent / expected).toBeLessThan(1 + 1e-8);
        if (expected !== "infinite") expect(account.spent / expected).toBeGreaterThan(1 - (sampled ? 1e-2 : 1e-8));
        expect(account.permits).toBe(expected !== "infinite" && expected <= budget.limit);
      }
    },
  );

  test("a claim for a schedule is counted once in a federation, and again in another", () => {
    const claimed = { epsilon: 1, delta: 0, formula: "-", adjacency: "client", adversary: "server", covers: "schedule" as const };
    const guarantees: OwnRelease["guarantees"] = [{ adversary: "server", adjacency: "client", loss: { type: "Infinite", why: "-" } }];
    const opening = Account.opening({ limit: 1, delta: 0, basis: "claimed", adjacency: "client" });
    const release: OwnRelease = { what: "-", guarantees, claimed };
    const own = opening.after(release, "a").after(release, "a");
    expect([own.spent, own.permits]).toEqual([1, true]);
    expect([own.after(release, "b").spent, own.after(release, "b").permits]).toEqual([2, false]);
    for (const claim of [{ ...claimed, adversary: "shuffled(100)" }, { ...claimed, adjacency: "coordinate" }]) {
      expect(opening.after({ ...release, claimed: claim }, "a").spent).toBe(Infinity);
    }
  });

  test.each([
    // mu, epsilon, delta: mpmath, to 17 digits
    [1e-12, 0, 3.9894228040143267e-13], [1e-12, 1e-12, 8.3315470587727954e-14],
    [1.1099072430206849e-12, 1.0500679700433008e-18, 4.4278840153095229e-13], [2.5e-9, 3e-9, 1.4025612700329175e-10],
    [1e-6, 2.47e-12, 3.9894104540312568e-7], [1e-6, 5e-6, 5.3461788992627121e-14], [1.3e-5, 2.6e-6, 3.9896354527106383e-6],
    [1.2e-4, 3e-3, 1.4647519338129863e-143], [2.7e-4, 1e-7, 1.0766442815224555e-4], [1.04e-3, 7.9e-7, 4.1450523635074246e-4],
    [0.0103, 4.5e-4, 3.8888832923709504e-3], [0.3, 0.7, 1.40021097375135e-3], [0.7191, 3, 9.9951422140261459e-6],
    [2, 2.5, 0.25236911002420942], [7, 24.5, 0.44410651755945947], [7, 20, 0.68998097194700522],
    [2, 50, 1.0662620244749715e-128],
  ])("the Gaussian curve at mu %d and epsilon %d is at least the truth, and hardly more", (mu, epsilon, delta) => {
    expect(gaussianDelta(mu, epsilon)).toBeGreaterThanOrEqual(delta);
    expect(gaussianDelta(mu, epsilon) / delta).toBeLessThan(1 + 1e-7);
    expect(gaussianEpsilon(mu, delta)).toBeGreaterThanOrEqual(epsilon * (1 - 1e-14));
  });

  test("the Gaussian curve ends where its arguments do", () => {
    expect([gaussianDelta(1, Infinity), gaussianDelta(Infinity, 1), gaussianEpsilon(1, 1e-310)]).toEqual([0, 1, Infinity]);
    expect(gaussianDelta(1, 60)).toBe(2 ** -1022);
  });

  test("ten releases of 0.1 fit a limit of 1, and an eleventh does not", () => {
    const tenth: OwnRelease = {
      what: "-", claimed: null,
      guarantees: [{ adversary: "server", adjacency: "client", loss: { type: "Pure", epsilon: 0.1, count: 1 } }],
    };
    let account = Account.opening({ limit: 1, delta: 0, basis: "proven", adjacency: "client" });
    for (let i = 0; i < 10; i += 1) account = account.after(tenth, "a");
    expect([account.spent, account.permits]).toEqual([1, true]);
    expect(account.after(tenth, "a").permits).toBe(false);
  });
});
