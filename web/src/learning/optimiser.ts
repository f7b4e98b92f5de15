/** The optimisers of `torch.optim` on one flat vector, as sordino.learning.optimizers has them. */
import type { Model, Optimiser } from "../wire/task.ts";

/** One optimiser at work: keeps its state and moves `parameters` in place. */
export class Descent {
  readonly #optimiser: Optimiser;
  readonly #first: Float64Array;
  readonly #second: Float64Array;
  readonly #decayed: readonly { first: number; size: number }[];
  readonly #firstStep: number;

  /** `firstStep` is where the decay of the learning rate goes on. */
  constructor(optimiser: Optimiser, readonly parameters: Float32Array, model: Model, firstStep: number) {
    this.#optimiser = optimiser;
    this.#first = new Float64Array(parameters.length);
    this.#second = new Float64Array(parameters.length);
    this.#firstStep = firstStep;
    const fits = (name: string) => optimiser.decayed.length === 0 || optimiser.decayed.some((p) => matches(name, p));
    this.#decayed = optimiser.weight_decay ? model.parameters.filter(({ name }) => fits(name)) : [];
  }

  /** Step t = 0, 1, ..; the gradient is overwritten. */
  step(gradient: Float64Array, t: number): void {
    const optimiser = this.#optimiser;
    for (const { first, size } of this.#decayed) {
      for (let i = first; i < first + size; i += 1) gradient[i]! += optimiser.weight_decay * this.parameters[i]!;
    }
    const lr = optimiser.lr / (1 + optimiser.decay * (this.#firstStep + t));
    if (optimiser.name === "sgd") this.#sgd(gradient, lr, optimiser.momentum, optimiser.nesterov);
    else if (optimiser.name === "adam") this.#adam(gradient, lr, optimiser.beta1, optimiser.beta2, optimiser.epsilon, t);
    else this.#rmsprop(gradient, lr, optimiser.rho, optimiser.epsilon, optimiser.momentum);
  }

  #sgd(gradient: Float64Array, lr: number, momentum: number, nesterov: boolean): void {
    const velocity = this.#first;
    if (momentum === 0) {
      for (let i = 0; i < gradient.length; i += 1) this.parameters[i]! -= lr * gradient[i]!;
      return;
    }
    for (let i = 0; i < gradient.length; i += 1) {
      velocity[i] = momentum * velocity[i]! + gradient[i]!;
      this.parameters[i]! -= lr * (nesterov ? gradient[i]! + momentum * velocity[i]! : velocity[i]!);
    }
  }

  #adam(gradient: Float64Array, lr: number, beta1: number, beta2: number, epsilon: number, t: number): void {
    const [mean, square] = [this.#first, this.#second];
    const rate = lr / (1 - beta1 ** (t + 1));
    const root = Math.sqrt(1 - beta2 ** (t + 1));
    for (let i = 0; i < gradient.length; i += 1) {
      mean[i]! += (1 - beta1) * (gradient[i]! - mean[i]!);
      square[i] = beta2 * square[i]! + (1 - beta2) * gradient[i]! ** 2;
      this.parameters[i]! -= (rate * mean[i]!) / (Math.sqrt(square[i]!) / root + epsilon);
    }
  }

  #rmsprop(gradient: Float64Array, lr: number, rho: number, epsilon: number, momentum: number): void {
    const [velocity, square] = [this.#first, this.#second];
    for (let i = 0; i < gradient.length; i += 1) {
      square[i] = rho * square[i]! + (1 - rho) * gradient[i]! ** 2;
      velocity[i] = momentum * velocity[i]! + gradient[i]! / (Math.sqrt(square[i]!) + epsilon);
      this.parameters[i]! -= lr * velocity[i]!;
    }
  }
}

/** Whether a name fits a pattern with * and ? (and nothing else of the shell's). */
function matches(name: string, pattern: string): boolean {
  const source = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".");
  return new RegExp(`^${source}$`, "s").test(name);
}
