/** Renyi divergences of single releases, computed here and never taken from a server's word for it. */

/** How many points a divergence is computed from; more are needed only where the noise protects nobody. */
const MOST_POINTS = 100_000;

/**
 * Divergence at `order` of one Gaussian release of noise multiplier sigma on a Poisson sample of rate q, where a record is
 * added or removed: ln E[(1 - q + q e^((2z - 1)/(2 sigma^2)))^order] / (order - 1) for z normal with variance sigma^2
 * (Mironov, Talwar, Zhang 2019), by the trapezoidal rule: the integrand is analytic in a strip of half-width pi sigma^2, so
 * that steps of a tenth of that (and of sigma) leave an error below e^(-60).
 */
export function addedOrRemoved(q: number, sigma: number, order: number): number {
  const variance = sigma * sigma;
  const unsampled = order / (2 * variance); // sampling never makes it larger
  const step = Math.min(sigma, Math.PI * variance) / 10;
  const [from, to] = [-14 * sigma, order + 14 * sigma];
  const count = Math.ceil((to - from) / step);
  if (count > MOST_POINTS) return unsampled; // which is above 10^4 then
  const logs = new Float64Array(count + 1);
  let largest = -Infinity;
  for (let i = 0; i <= count; i += 1) {
    const z = from + i * step;
    logs[i] = order * logMix(q, (2 * z - 1) / (2 * variance)) - (z * z) / (2 * variance);
    largest = Math.max(largest, logs[i]!);
  }
  let sum = 0;
  for (const log of logs) sum += Math.exp(log - largest);
  const moment = largest + Math.log((sum * step) / (sigma * Math.sqrt(2 * Math.PI)));
  return Math.min(Math.max(0, (moment + 1e-14) / (order - 1)), unsampled); // the sum is rounded to about 1e-15 of 1
}

/**
 * The same where a record is exchanged, which is a removal and an addition: the weak triangle inequality (Mironov 2017,
 * Proposition 11) joins the two.
 */
export function exchanged(q: number, sigma: number, order: number): number {
  const [removed, added] = [addedOrRemoved(q, sigma, 2 * order), addedOrRemoved(q, sigma, 2 * order - 1)];
  return Math.min(((order - 0.5) / (order - 1)) * removed + added, (order * (2 / sigma) ** 2) / 2);
}

/** ln(1 - q + q e^x). */
function logMix(q: number, x: number): number {
  return x > 0 ? x + Math.log(q + (1 - q) * Math.exp(-x)) : Math.log1p(q * Math.expm1(x));
}

/** The largest divergence of any release with a pure epsilon: that of a randomised bit, at most epsilon itself. */
export function pure(epsilon: number, order: number): number {
  const logMoment =
    order * epsilon > 30
      ? (order - 1) * epsilon - Math.log1p(Math.exp(-epsilon)) + Math.exp((1 - 2 * order) * epsilon)
      : Math.log1p((-Math.expm1((1 - order) * epsilon) * Math.expm1(order * epsilon)) / (1 + Math.exp(epsilon)));
  return Math.min(epsilon, logMoment / (order - 1));
}

/** Epsilon at delta of a divergence at one order (Canonne, Kamath & Steinke 2020, Proposition 12). */
export function epsilonOf(order: number, divergence: number, delta: number): number {
  if (divergence === 0) return 0;
  if (delta <= 0) return Infinity;
  return Math.max(0, divergence + Math.log1p(-1 / order) - Math.log(delta * order) / (order - 1));
}
