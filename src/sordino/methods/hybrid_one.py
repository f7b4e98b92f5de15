"""Hybrid-One (Truex, Baracaldo, Anwar, Steinke, Ludwig, Zhang, Zhou, "A hybrid approach to privacy-preserving federated
learning", AISec 2019): DP-SGD in every silo under a secure sum, each silo adding only a part of the noise.

    each round t:   each silo k:   s_k <- sum of clipped gradients at w_t, in whole grid steps
                                   send s_k + N_Z(0, 4^b) into a secure sum modulo 2^m
                    server:        gets that sum alone;   w_{t+1} <- one step of the optimiser along sum / batches

As long as h silos in a sum are honest (keep to the protocol, keep their noise to themselves), their discrete Gaussian
noises add up to one of sqrt(h) 2^b steps (Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism", ICML
2021). Nothing comes between a silo's noise and the sum, which is known in the ring Z/2^m alone: whether a silo wrapped
around, nobody learns. The step of the optimiser comes after it and costs accuracy at most. h is the fewest that a sum
has in it less those who may side with the server. Whoever sees a silo's own upload, the secure sum being broken, sees
it under the noise of that silo alone: that guarantee is stated beside the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import NoisySums
from sordino.methods.aggregation import Mean, MeanAlone
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import Bench, Cohort, LocalView, Reported, State
from sordino.methods.silo_dp import RECORDS, WHAT, SiloDp, private_training
from sordino.methods.upload import Draw, Same, Tally, Upload
from sordino.parts.tables import Count, Found, Says, reads, tag
from sordino.parts.timeline import phase
from sordino.privacy.guarantee import SERVER, Guarantee, Infinite, Release
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.learning.private_sgd import PrivateTraining
    from sordino.recipe import Recipe


class HybridOne(SiloDp):
    """Private silos whose noises add up in a secure sum."""

    class Spec(SiloDp.Spec):
        """Hybrid-One: silos that train by DP-SGD under a secure sum, each adding a part of the noise it needs."""

        name: str = tag("hybrid-one", "record-level DP-SGD in every silo, the noise shared under a secure sum")
        steps: Annotated[Literal[1], Says("1: what is summed is one noisy gradient")] = Field(
            default=1,
            description="noisy gradients per round: their sum is all that leaves, and the server takes the step",
        )
        colluding: Count = Field(
            default=1,
            description="how many silos of a sum may side with the server: the others, of the fewest that a sum has "
            "in it, "
            "add all of the noise",
        )
        aggregation: MeanAlone = Mean()

        @reads("method", "split")
        def honest_silos_are_in_every_secure_sum(self, recipe: Recipe) -> Found:
            """Nobody sees less than a sum, and every sum has honest silos in it."""
            channel, asked = self.channel, self.selection.asked(recipe.number_of_clients)
            if not hasattr(channel, "least"):
                yield (
                    "method.channel.kind",
                    f"got {channel.kind}; each silo of hybrid-one adds a part of the noise only, which hides little "
                    "unless sums alone are seen: take summed, or the method silo-dp",
                )
            elif not self.selection.steady:
                yield (
                    "method.selection.kind",
                    f"got {self.selection.kind}; how many silos share the noise must be known: take all, count or "
                    "fraction",
                )
            elif self.colluding > (most := 2 * channel.least(asked) - asked - 1):
                yield (
                    ".colluding",
                    f"got {self.colluding}; allowed: at most {most} where {channel.least(asked)} of {asked} silos are "
                    "in every sum: raise method.channel.threshold, or ask more silos",
                )

        def build(self, blueprint: Blueprint) -> HybridOne:
            if self.clamp is not None:
                raise InvalidInput(
                    "method.clamp cuts single reports, and of a secure sum nobody sees any: leave it out, or take "
                    "silo-dp"
                )
            training = private_training(blueprint, honest_silos(self, blueprint.clients))
            grid = training.grid(blueprint.values)
            unit = training.clip * 2**grid.coarsening / grid.clip / training.expected_batch
            bits = modulus_bits(training, blueprint.values, self.selection.asked(blueprint.clients))
            mechanism = NoisySums(unit, bits, grid.noise.sigma)
            upload = Upload(Same(mechanism), None, blueprint.values, clients=blueprint.clients, what=WHAT)
            return HybridOne(blueprint, upload, training)

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        name, values = f"{plan.federation}/{plan.round}", self.first_upload.values
        training = self.training
        both = training.shared_guarantee, training.guarantee
        found = [in_ring(own(values, adjacency), self._sums.bits) for adjacency in RECORDS for own in both]
        return ((self._release(name, found),),)

    @property
    def _sums(self) -> NoisySums:
        mechanism = self.first_upload.mechanisms[0]
        assert isinstance(mechanism, NoisySums)
        return mechanism

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        import torch

        mechanism = self._sums
        start = torch.from_numpy(plan.arrays["parameters"])
        trainer = bench.trainer(self.model)
        with phase("train"):
            noisy, local = trainer.noisy_sums(start, cohort.data, self.training, draw(cohort.clients))
            sums = noisy.cpu().numpy()
        values = sums * mechanism.unit
        norms, largest = np.linalg.norm(values, axis=1), np.abs(values).max(axis=1)
        loss = np.where([data is None for data in cohort.data], np.nan, local.loss)
        view = LocalView(loss, local.failed, local.clipped, norms, largest)
        return Reported(mechanism.encode(mechanism.output(sums)), cohort.states, view)

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        import torch

        from sordino.learning import models
        from sordino.learning.optimizers import Descent

        layout = models.parameter_layout(self.model)
        sizes = dict(zip(layout.names, layout.sizes, strict=True))
        before = torch.from_numpy(state.parameters.reshape(1, -1)).clone()
        descent = Descent(self.training.optimizer, before.clone(), sizes, first_step=state.round)
        gradient = tally.mean().astype(np.float32)
        descent.step(torch.from_numpy(gradient.reshape(1, -1)), 0)
        moved = self.spec.server_lr * (descent.parameters - before)
        return state.after((before + moved)[0].numpy())


def in_ring(found: Guarantee, bits: int) -> Guarantee:
    """The same of numbers that are sent, or added up, modulo 2^bits."""
    if isinstance(found.loss, Infinite):
        return found
    if found.adversary == SERVER:
        return replace(found, basis=f"{found.basis}, sent modulo 2^{bits}")
    return replace(found, basis=f"{found.basis}, added up modulo 2^{bits}", modulus=bits)


def modulus_bits(training: PrivateTraining, values: int, silos: int) -> int:
    """m: so that a sum of twice the expected records, all alike, and its noise hardly ever wrap around."""
    grid = training.grid(values)
    most = (
        silos * 2 * training.expected_batch * grid.clip / 2**grid.coarsening + 12 * math.sqrt(silos) * grid.noise.sigma
    )
    return min(NoisySums.most_bits, math.ceil(math.log2(most)) + 1)


def honest_silos(given: HybridOne.Spec, clients: int) -> int:
    """h: the fewest that a sum has in it, less those who may side with the server."""
    asked = given.selection.asked(clients)
    honest: int = given.channel.least(asked) - given.colluding
    if honest < 2:
        raise InvalidInput(
            f"of {asked} silos {given.channel.least(asked)} are in every sum, and {given.colluding} may side with the "
            "server: that leaves nobody to share the noise with. Ask more silos, or take silo-dp"
        )
    return honest


__all__ = ["HybridOne", "NoisySums", "honest_silos", "in_ring", "modulus_bits"]
