/** Functions of the normal distribution in double precision. */

const polynomial = (x: number, coefficients: readonly number[]): number =>
  coefficients.reduceRight((sum, coefficient) => sum * x + coefficient, 0);

// Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37 (1988), PPND16.
const CENTRE = [
  [3.387132872796366608, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125, 45921.953931549871457,
    67265.770927008700853, 33430.575583588128105, 2509.0809287301226727],
  [1, 42.313330701600911252, 687.1870074920579083, 5394.1960214247511077, 21213.794301586595867, 39307.89580009271061,
    28729.085735721942674, 5226.495278852854561],
] as const;
const NEAR = [
  [1.42343711074968357734, 4.6303378461565452959, 5.7694972214606914055, 3.64784832476320460504, 1.27045825245236838258,
    0.24178072517745061177, 0.0227238449892691845833, 7.7454501427834140764e-4],
  [1, 2.05319162663775882187, 1.6763848301838038494, 0.68976733498510000455, 0.14810397642748007459,
    0.0151986665636164571966, 5.475938084995344946e-4, 1.05075007164441684324e-9],
] as const;
const FAR = [
  [6.6579046435011037772, 5.4637849111641143699, 1.7848265399172913358, 0.29656057182850489123, 0.026532189526576123093,
    0.0012426609473880784386, 2.71155556874348757815e-5, 2.01033439929228813265e-7],
  [1, 0.59983220655588793769, 0.13692988092273580531, 0.0148753612908506148525, 7.868691311456132591e-4,
    1.8463183175100546818e-5, 1.4215117583164458887e-7, 2.04426310338993978564e-15],
] as const;

/** The x with Phi(x) = p, to about 16 digits. */
export function normalQuantile(p: number): number {
  const q = p - 0.5;
  if (Math.abs(q) <= 0.425) return quantileAround(q);
  const r = Math.sqrt(-Math.log(q < 0 ? p : 1 - p));
  const x =
    r <= 5
      ? polynomial(r - 1.6, NEAR[0]) / polynomial(r - 1.6, NEAR[1])
      : polynomial(r - 5, FAR[0]) / polynomial(r - 5, FAR[1]);
  return q < 0 ? -x : x;
}

/** The x with Phi(x) = 1/2 + q for |q| <= 0.425, to about 16 digits, however small q is. */
export function quantileAround(q: number): number {
  const r = 0.180625 - q * q;
  return (q * polynomial(r, CENTRE[0])) / polynomial(r, CENTRE[1]);
}

/** e^(x^2) erfc(x), to about 14 digits. */
export function scaledErfc(x: number): number {
  if (x < 2) return Math.exp(x * x) * erfcBySeries(x);
  // the continued fraction 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + ..)))), from its tail
  let tail = x;
  for (let k = 120; k >= 1; k -= 1) tail = x + k / 2 / tail;
  return 1 / (tail * Math.sqrt(Math.PI));
}

/** erfc(x). */
export function erfc(x: number): number {
  return x < 2 ? erfcBySeries(x) : Math.exp(-x * x) * scaledErfc(x);
}

/** 1 - erf(x) by the series erf(x) = 2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1)/(2n+1)!!, all of whose terms have one sign. */
function erfcBySeries(x: number): number {
  if (x < 0) return 2 - erfc(-x);
  let term = x;
  let sum = x;
  for (let n = 1; term > 1e-18 * sum; n += 1) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return 1 - (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}
