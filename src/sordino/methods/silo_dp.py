"""Record-level differential privacy in silos: every silo trains with DP-SGD and sends the result as it is.

    each round t:   each silo k:   w_k <- S steps of DP-SGD from w_t: Poisson batches of rate q, per-record gradients
                                          clipped to C, Gaussian noise of standard deviation sigma * C on their sum
                                   send w_k - w_t
                    server:        w_{t+1} <- w_t + server_lr * mean(w_k - w_t)

What a silo sends is computed from noisy sums only, so everything it ever sends is (epsilon, delta)-differentially
private in each of its own records, whatever the server and the other silos do ("inter-silo record-level DP", Lowy and
Razaviyayn 2023). It hides a record, not the silo: against that there is no bound, and the statement says so.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from sordino.learning.private_sgd import PrivateTraining
from sordino.messages import Plan
from sordino.methods.fedavg import DATASET, FedAvg
from sordino.methods.interface import Bench, Cohort, LocalView
from sordino.methods.upload import Draw, samples_release
from sordino.privacy.guarantee import Release

WHAT = "model update (DP-SGD)"


class SiloDp(FedAvg):
    """Federated averaging of silos that train privately; the guarantee is the training's."""

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        assert isinstance(self._training, PrivateTraining)
        name = f"{plan.federation}/{plan.round}"
        release = Release(f"{name}/{WHAT}", DATASET, WHAT, (self._training.guarantee,))
        return ((release, samples_release(name, DATASET)) if self._upload.samples else (release,),)

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        """One round with next to no noise, to see how large a silo's update is: in a simulation only."""
        assert isinstance(self._training, PrivateTraining)
        quiet = copy.copy(self)
        quiet._training = replace(self._training, noise_multiplier=1e-9)
        return FedAvg.report(quiet, plan, cohort, draw, bench).local


__all__ = ["WHAT", "SiloDp"]
