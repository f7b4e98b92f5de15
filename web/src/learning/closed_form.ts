/**
 * What the gradient of one record in a linear model says about the record, without any search.
 *
 * Where all weights are 0, the model gives each of K classes the probability 1/K. So a record (x, 1) of class y has the gradient
 * r (x, 1)^T with r = 1/K - onehot(y), and r^T r (x, 1)^T / |r|^2 is the record (Phong et al., "Privacy-preserving deep learning via
 * additively homomorphic encryption", 2018, section III).
 */

/** Parameters of a linear model, weights then biases, as one row for each class, the bias last: `[classes, inputs + 1]`. */
export function rowsOf(flat: ArrayLike<number>, classes: number): Float64Array {
  const inputs = flat.length / classes - 1;
  const rows = new Float64Array(flat.length);
  for (let k = 0; k < classes; k += 1) {
    for (let j = 0; j < inputs; j += 1) rows[k * (inputs + 1) + j] = flat[k * inputs + j]!;
    rows[k * (inputs + 1) + inputs] = flat[classes * inputs + k]!;
  }
  return rows;
}

/** The record in a gradient `[classes, width]` at weights of 0: the mean of all rows less that of its class, over |r|^2. */
export function recordIn(gradient: Float64Array, classes: number, label: number): Float64Array {
  const width = gradient.length / classes;
  const found = new Float64Array(width);
  for (let k = 0; k < classes; k += 1) {
    const residual = 1 / classes - (k === label ? 1 : 0);
    for (let j = 0; j < width; j += 1) found[j]! += residual * gradient[k * width + j]!;
  }
  return found.map((value) => value / (1 - 1 / classes));
}

/** The variance of noise in each value of `recordIn`: rows of other classes would all be the same without it. */
export function noiseIn(gradient: Float64Array, classes: number, label: number): number {
  const width = gradient.length / classes;
  const others = Array.from({ length: classes }, (_, k) => k).filter((k) => k !== label);
  let squares = 0;
  for (let j = 0; j < width; j += 1) {
    const mean = others.reduce((sum, k) => sum + gradient[k * width + j]!, 0) / others.length;
    for (const k of others) squares += (gradient[k * width + j]! - mean) ** 2;
  }
  return squares / width / (others.length - 1) / (1 - 1 / classes);
}
