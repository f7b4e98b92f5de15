/** Products of matrices, on which all training rests: through jax-js (wasm with threads, WebGPU), or in plain script. */

/** Row-major matrices in float32. Column counts of results should be multiples of 4: then wasm takes four at a time. */
export interface Multiplier {
  readonly device: "script" | "wasm" | "webgpu";
  readonly threads: number;
  /** a [m, k] times b [k, n] */
  multiply(a: Float32Array, b: Float32Array, m: number, k: number, n: number): Promise<Float32Array>;
  /** the transpose of a [m, k] times b [m, n]: a result [k, n] */
  multiplyTransposed(a: Float32Array, b: Float32Array, m: number, k: number, n: number): Promise<Float32Array>;
}

/** For small products, where a call into wasm costs more than the product, and where there is no wasm. */
export class ScriptMultiplier implements Multiplier {
  readonly device = "script";
  readonly threads = 1;

  async multiply(a: Float32Array, b: Float32Array, m: number, k: number, n: number): Promise<Float32Array> {
    const result = new Float32Array(m * n);
    const row = new Float64Array(n);
    for (let i = 0; i < m; i += 1) {
      row.fill(0);
      for (let t = 0; t < k; t += 1) {
        const factor = a[i * k + t]!;
        if (factor === 0) continue;
        const at = t * n;
        for (let j = 0; j < n; j += 1) row[j]! += factor * b[at + j]!;
      }
      result.set(row, i * n);
    }
    return result;
  }

  async multiplyTransposed(a: Float32Array, b: Float32Array, m: number, k: number, n: number): Promise<Float32Array> {
    const sums = new Float64Array(k * n);
    for (let i = 0; i < m; i += 1) {
      for (let t = 0; t < k; t += 1) {
        const factor = a[i * k + t]!;
        if (factor === 0) continue;
        const at = t * n;
        for (let j = 0; j < n; j += 1) sums[at + j]! += factor * b[i * n + j]!;
      }
    }
    return new Float32Array(sums);
  }
}

/** multiplications below which plain script is faster than a call of a kernel, as it is for a single row */
const SMALL = 100_000;
/** multiplications from which on it pays to wake other threads */
const LARGE = 3_000_000;

type Jax = typeof import("@jax-js/jax");
type Matrix = InstanceType<Jax["Array"]>;
type Product = (a: Matrix, b: Matrix) => Matrix;

/** jax-js on one of its devices. */
export class JaxMultiplier implements Multiplier {
  readonly #jax: Jax;
  readonly #script = new ScriptMultiplier();
  readonly #plain: Product;
  readonly #transposed: Product;

  private constructor(jax: Jax, readonly device: "wasm" | "webgpu", readonly threads: number) {
    const { numpy: np, jit } = jax;
    this.#jax = jax;
    this.#plain = jit((a, b) => np.matmul(a, b)) as Product;
    this.#transposed = jit((a, b) => np.matmul(np.transpose(a), b)) as Product;
  }

  /** Null where the device is not to be had, or computes something else than plain script does. */
  static async open(device: "wasm" | "webgpu", threads = device === "wasm" ? wasmThreads() : 1): Promise<JaxMultiplier | null> {
    const jax = await import("@jax-js/jax");
    if (!(await jax.init(device)).includes(device)) return null;
    const found = new JaxMultiplier(jax, device, threads);
    if (await found.#isRight()) return found;
    // Where threads are forbidden (by a policy, say), a product made by them is silently not made at all.
    const alone = new JaxMultiplier(jax, device, 1);
    return threads > 1 && (await alone.#isRight()) ? alone : null;
  }

  async multiply(a: Float32Array, b: Float32Array, m: number, k: number, n: number): Promise<Float32Array> {
    if (m === 1 || m * k * n < SMALL) return this.#script.multiply(a, b, m, k, n);
    return this.#run(this.#plain, a, [m, k], b, [k, n], m * k * n);
  }

  async multiplyTransposed(a: Float32Array, b: Float32Array, m: number, k: number, n: number): Promise<Float32Array> {
    if (m === 1 || m * k * n < SMALL) return this.#script.multiplyTransposed(a, b, m, k, n);
    return this.#run(this.#transposed, a, [m, k], b, [m, n], m * k * n);
  }

  async #run(product: Product, a: Float32Array, shapeOfA: number[], b: Float32Array, shapeOfB: number[], work: number): Promise<Float32Array> {
    const { numpy: np } = this.#jax;
    const { device } = this;
    const left = np.array(a as Float32Array<ArrayBuffer>, { shape: shapeOfA, device });
    const right = np.array(b as Float32Array<ArrayBuffer>, { shape: shapeOfB, device });
    const result = product(left, right);
    const here = device === "wasm" && (this.threads === 1 || work < LARGE);
    return (here ? result.dataSync() : await result.data()) as Float32Array;
  }

  /** Compares a product large enough for all threads with plain script's. */
  async #isRight(): Promise<boolean> {
    const [m, k, n] = [2048, 128, 16];
    const a = Float32Array.from({ length: m * k }, (_, i) => ((i * 7) % 11) - 5);
    const b = Float32Array.from({ length: k * n }, (_, i) => ((i * 5) % 13) - 6);
    try {
      const made = await Promise.race([this.multiply(a, b, m, k, n), after(8000)]);
      const expected = await this.#script.multiply(a, b, m, k, n); // whole numbers, exact in float32
      return made !== null && expected.every((value, i) => made[i] === value);
    } catch {
      return false;
    }
  }
}

function after(milliseconds: number): Promise<null> {
  return new Promise((resolve) => setTimeout(() => resolve(null), milliseconds));
}

/** jax-js starts as many threads as there are cores, wherever memory can be shared. */
export function wasmThreads(): number {
  const shared = typeof SharedArrayBuffer !== "undefined" && typeof Worker !== "undefined";
  return shared ? Math.max(1, globalThis.navigator?.hardwareConcurrency ?? 4) : 1;
}
