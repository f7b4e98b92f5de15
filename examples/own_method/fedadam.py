"""A method of one's own: FedAdam (Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2).

    each round t:   x <- the mean of the clients' updates
                    m <- beta1 m + (1 - beta1) x;   v <- beta2 v + (1 - beta2) x^2
                    w <- w + server_lr m / (sqrt(v) + tau)

m and v are the server's state. They are stored with the model, so that a run that was killed goes on as it would have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from sordino.methods.blueprint import Blueprint
from sordino.methods.fedavg import FedAvg
from sordino.methods.interface import State
from sordino.methods.upload import Tally
from sordino.parts.tables import Found, Positive, Share, reads, tag
from sordino.wire.messages import Plan

MOMENTS = ("first_moment", "second_moment")


class FedAdam(FedAvg):
    """Federated averaging whose server steps by Adam; everything else is `fedavg`'s."""

    class Spec(FedAvg.Spec):
        """Federated averaging with Adam at the server."""

        name: str = tag("fedadam", "federated averaging with Adam at the server")
        beta1: Share = Field(default=0.9, description="decay of the mean update")
        beta2: Share = Field(default=0.99, description="decay of the mean squared update")
        tau: Positive = Field(default=1e-3, description="added to the root")

        @reads("method")
        def updates_to_step_along(self, recipe: Any) -> Found:
            """Adam steps along updates."""
            if self.upload == "weights":
                yield ".upload", "got weights; FedAdam steps along updates: take update"

        def build(self, blueprint: Blueprint) -> FedAvg:
            return FedAdam(blueprint, self.first_upload(blueprint))

    def init(self) -> State:
        state = super().init()
        zeros = dict.fromkeys(MOMENTS, np.zeros_like(state.parameters))
        return State(0, state.parameters, {**state.arrays, **zeros})

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        given, x = self.spec, tally.mean()
        m, v = (state.arrays[name].astype(np.float64) for name in MOMENTS)
        m = given.beta1 * m + (1 - given.beta1) * x
        v = given.beta2 * v + (1 - given.beta2) * x**2
        step = given.server_lr * m / (np.sqrt(v) + given.tau)
        return state.after(state.parameters + step, {**state.arrays, **dict(zip(MOMENTS, (m, v), strict=True))})
