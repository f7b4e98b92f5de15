/** The curve of Gaussian differential privacy (Balle & Wang 2018). */
import { erfc, normalQuantile, scaledErfc } from "../bits/normal.ts";

const HOPELESS = 1e6;

/** delta_mu(epsilon) for epsilon >= 0, without overflow. */
export function gaussianDelta(mu: number, epsilon: number): number {
  if (mu === 0) return 0;
  if (mu > HOPELESS) return 1;
  const a = (epsilon / mu - mu / 2) / Math.SQRT2;
  const b = (epsilon / mu + mu / 2) / Math.SQRT2;
  if (a > 0) return 0.5 * Math.exp(-a * a) * (scaledErfc(a) - scaledErfc(b));
  return 0.5 * (erfc(a) - Math.exp(-a * a) * scaledErfc(b));
}

/** Smallest epsilon >= 0 with delta_mu(epsilon) <= delta, from above. */
export function gaussianEpsilon(mu: number, delta: number): number {
  if (mu === 0) return 0;
  if (delta <= 0 || mu > HOPELESS) return Infinity;
  if (gaussianDelta(mu, 0) <= delta) return 0;
  let [fails, holds] = [0, mu * (mu / 2 + 1)];
  while (gaussianDelta(mu, holds) > delta) holds *= 2;
  for (let i = 0; i < 200 && holds - fails > 1e-14 * holds; i += 1) {
    const middle = (holds + fails) / 2;
    if (gaussianDelta(mu, middle) <= delta) holds = middle;
    else fails = middle;
  }
  return holds;
}

/** The mu of a randomised bit: no release with this pure epsilon tells more. */
export function muOfPure(epsilon: number): number {
  // Below 1e-4 the quantile would lose digits; there 2 sqrt(2 pi) (1/2 - p) with p = 1/(1 + e^eps) is exact to eps^3.
  if (epsilon < 1e-4) return Math.sqrt(Math.PI / 2) * epsilon * (1 + epsilon * epsilon);
  return -2 * normalQuantile(1 / (1 + Math.exp(Math.min(epsilon, 700))));
}

/** A mu whose curve lies above delta_mu(epsilon - eta) for every epsilon >= 0. */
export function absorbSlack(mu: number, eta: number): number {
  if (eta === 0) return mu;
  if (mu === 0) return muOfPure(eta);
  return mu + eta * Math.sqrt(Math.PI / 2) * scaledErfc((mu / 2 - eta / mu) / Math.SQRT2);
}
