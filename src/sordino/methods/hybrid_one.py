"""Hybrid-One (Truex, Baracaldo, Anwar, Steinke, Ludwig, Zhang, Zhou, "A hybrid approach to privacy-preserving federated
learning", AISec 2019): DP-SGD in every silo under a secure sum, each silo adding only a part of the noise.

    each round t:   each silo k:   w_k <- S steps of DP-SGD from w_t (see silo_dp), the noise of each step having the
                                          standard deviation sigma * C / sqrt(h) instead of sigma * C
                                   send w_k - w_t into a secure sum
                    server:        gets the sum alone;   w_{t+1} <- w_t + server_lr * (sum / number of silos)

As long as h of the silos in a sum are honest (keep to the protocol, keep their noise to themselves), their noises add
up to one of standard deviation sigma * C, so each silo gets away with a part of it. Whoever sees a silo's own upload,
the secure sum being broken, sees it under the noise of that part alone: that guarantee is stated beside the other.

Proven against the sum is one step a round (S = 1) of plain gradient descent: only then is the sum of the uploads the
sum of clipped gradients plus the sum of the noises. With more local steps, or an optimiser that does not take its
gradients as they are, the noise of other silos has gone through their own training and is no longer Gaussian: what the
formula gives is then a claim, and what is proven is the guarantee of a silo's own noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sordino.errors import InvalidInput
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import PrivateTraining
from sordino.messages import Plan
from sordino.methods.fedavg import DATASET
from sordino.methods.setting import Built, Setting
from sordino.methods.silo_dp import WHAT, SiloDp, private_training
from sordino.methods.silo_dp import build as build_silos
from sordino.methods.upload import samples_release
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import Adjacency, Claim, Guarantee, PoissonGaussian, Release, summed


@dataclass(frozen=True)
class Shared:
    """What h honest silos' noises protect together, in one round."""

    guarantee: Guarantee
    claim: Claim | None  #: for all rounds together, where there is no proof of it

    @classmethod
    def of(cls, whole: PrivateTraining, own: PrivateTraining, honest: int, rounds: int, delta: float) -> Shared:
        """`whole` is DP-SGD with all the noise, as if a silo had to add it by itself; `own` with its part of it."""
        loss = PoissonGaussian(whole.sampling_rate, whole.noise_multiplier, whole.steps)
        basis = (
            f"DP-SGD under a secure sum: the noises of {honest} honest silos add up to the multiplier "
            f"{whole.noise_multiplier:g}; proven in real arithmetic, before uploads are rounded to be summed"
        )
        guarantee = Guarantee(summed(honest), Adjacency.RECORD_ADD_REMOVE, loss, basis)
        if linear(whole):
            return cls(guarantee, None)
        total = compose([loss] * rounds, adjacency=guarantee.adjacency).epsilon(delta)
        formula = f"noise divided by sqrt({honest}) under a secure sum, {whole.steps} local steps a round (Hybrid-One)"
        claim = Claim(total, delta, formula, guarantee.adjacency, guarantee.adversary, "schedule")
        basis = f"{own.guarantee.basis}; what holds of the report holds of the sum"
        return cls(replace(own.guarantee, adversary=guarantee.adversary, basis=basis), claim)


def linear(training: PrivateTraining) -> bool:
    """Whether an upload is its clipped gradients and its noise, times a number: then sums of uploads are theirs."""
    return training.steps == 1 and isinstance(training.optimizer, SGD)


class HybridOne(SiloDp):
    """Private silos whose noises add up in a secure sum."""

    shared: Shared

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        name = f"{plan.federation}/{plan.round}"
        added = (self.shared.guarantee, self.training.guarantee)
        exchanged = tuple(replace(guarantee, adjacency=Adjacency.RECORD_REPLACE) for guarantee in added)
        release = Release(f"{name}/{WHAT}", DATASET, WHAT, (*added, *exchanged), self.shared.claim)
        return ((release, samples_release(name, DATASET)) if self._upload.samples else (release,),)


def build(setting: Setting) -> Built:
    """Hybrid-One as a recipe asks for it."""
    given: Any = setting.recipe.method
    asked = given.selection.asked(setting.clients)
    if given.honest > asked:
        raise InvalidInput(
            f"method.honest = {given.honest} silos cannot be in a sum of {asked}: lower it, or ask more silos"
        )
    if given.clamp is not None:
        raise InvalidInput(
            "method.clamp would cut the silos' noises before they add up, and Hybrid-One's proof is about their sum: "
            "leave it out, or take silo-dp"
        )
    built = build_silos(setting)
    whole = private_training(setting)
    own = replace(whole, noise_multiplier=whole.noise_multiplier / math.sqrt(given.honest))
    method = HybridOne(setting, own, built.upload, sends="update")
    delta = 1e-5 if given.target is None else given.target.delta
    method.shared = Shared.of(whole, own, given.honest, setting.recipe.rounds.count, delta)
    return replace(built, method=method)


__all__ = ["HybridOne", "Shared", "build", "linear"]
