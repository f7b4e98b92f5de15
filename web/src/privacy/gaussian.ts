/** The curve of Gaussian differential privacy (Balle & Wang 2018). */
import { erfc, normalQuantile, quantileAround, scaledErfc } from "../bits/normal.ts";

const HOPELESS = 1e6;
/** e^(-27^2) is below the smallest normal number */
const HOPELESS_TAIL = 27;
const SMALLEST_NORMAL = 2 ** -1022;
/** below this mu, the curve is computed from slopes */
const SMALL_MU = 2 ** -11;
/** relative error of erfc and scaledErfc */
const ERFC = 4e-13;
/** relative error of quantiles */
const QUANTILE = 2 ** -48;

/**
 * delta_mu(epsilon) for epsilon >= 0, without overflow, rounded up and never below the smallest normal number. Where mu is
 * small, a difference of scaledErfc would lose its digits: it is the integral of a falling, convex slope, so that a
 * trapezium is above it.
 */
export function gaussianDelta(mu: number, epsilon: number): number {
  if (mu > HOPELESS) return 1;
  if (mu === 0 || epsilon === Infinity) return 0;
  const a = (epsilon / mu - mu / 2) / Math.SQRT2;
  const b = (epsilon / mu + mu / 2) / Math.SQRT2;
  if (a > HOPELESS_TAIL) return SMALLEST_NORMAL;
  const [rounding, last] = [2 ** -50 * (4 + (Math.abs(a) + 1) * b), Math.exp(-a * a)];
  if (a > 0 || mu < SMALL_MU) {
    const difference =
      mu < SMALL_MU ? (mu / Math.sqrt(8)) * (slope(a) + slope(b)) : (1 + 2 * ERFC) * scaledErfc(a) - scaledErfc(b);
    return Math.max(0.5 * last * difference * (1 + rounding), SMALLEST_NORMAL);
  }
  const [first, second] = [erfc(a), last * scaledErfc(b)];
  return Math.min(1, 0.5 * ((1 + ERFC) * first - second + (rounding + ERFC) * second + 2 ** -49 * b * last));
}

/** How fast scaledErfc falls at x, rounded up. */
function slope(x: number): number {
  return 2 / Math.sqrt(Math.PI) - 2 * x * scaledErfc(x) + 2 * ERFC;
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

/** The mu of a randomised bit, rounded up: no release with this pure epsilon tells more. Infinite above 700. */
export function muOfPure(epsilon: number): number {
  if (epsilon > 700) return Infinity;
  const mu = epsilon < 2 ? 2 * quantileAround(Math.tanh(epsilon / 2) / 2) : -2 * normalQuantile(1 / (1 + Math.exp(epsilon)));
  return mu * (1 + QUANTILE);
}

/** A mu whose curve lies above delta_mu(epsilon - eta) for every epsilon >= 0. */
export function absorbSlack(mu: number, eta: number): number {
  if (eta === 0) return mu;
  if (mu === 0) return muOfPure(eta);
  return mu + eta * Math.sqrt(Math.PI / 2) * scaledErfc((mu / 2 - eta / mu) / Math.SQRT2);
}
