"""How far one malicious client can move the model in one round: its part of the mean, times what it can say.

    shift of the mean     w / W * (highest - lowest estimate of a legal report),   W the weights of all who report
    shift of the model    server_lr times that; at most two steps of a vote, where only the sign of the mean counts

Both are differences between two worlds in which everybody else sends the same. A client that may choose its class (by
announcing an epsilon that nobody can check) chooses the one with the largest product of weight and reach; one that
announces its own number of samples announces the largest that is accepted. In a secure sum the server sees no report,
so that one client can put the sum anywhere in the range of all of them: its part of the mean is then the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sordino.errors import InvalidInput
from sordino.mechanisms.reach import Reach
from sordino.methods.robust import RobustTally
from sordino.methods.upload import PLAIN_LIMIT, Tally


@dataclass(frozen=True, eq=False)
class Influence:
    """What one client of a class can do in one round."""

    group: int  #: the class
    share: float  #: its part of all weights
    reach: Reach
    step: float = 1.0  #: the model moves by so much times what the mean moves by
    most: float = math.inf  #: no value of the model moves further than this, whatever the mean does

    @property
    def value(self) -> float:
        """How far one value of the model moves at most."""
        return min(self.step * self.share * self.reach.width, self.most)

    @property
    def length(self) -> float:
        """The L2 norm of the model's shift at most."""
        everywhere = self.most * math.sqrt(self.reach.lowest.size)
        return min(self.step * self.share * self.reach.length, everywhere)


def on_mean(tally: Tally, counts: Sequence[int], group: int, *, samples: int = 0) -> Influence:
    """On the mean of a round with so many reports of every class, this client's among them.

    Where samples weigh, `samples` is the number behind all the other reports together, and the client announces the
    largest that is accepted.
    """
    upload = tally.upload
    if isinstance(tally, RobustTally):
        raise InvalidInput("a robust rule gives no client a part of a mean: benchmarks.attacks measures what it holds")
    if len(counts) != len(upload.strengths) or not counts[group] >= 1:
        raise InvalidInput(f"give the number of reports of each of {len(upload.strengths)} classes, the client's too")
    if upload.samples:
        share = upload.most_samples / (upload.most_samples + samples)
    else:
        weights = tally.weights
        share = float(weights[group] / (weights @ np.asarray(counts, np.float64)))
    limit = PLAIN_LIMIT if upload.clamp is None else upload.clamp
    found = upload.mechanisms[group].reach(upload.values, limit=limit)
    if found is None:
        raise InvalidInput(f"nothing is known of what {upload.mechanisms[group]!r} puts out: there is no bound")
    return Influence(group, share, found if upload.norm is None else _within(found, upload.norm))


def _within(found: Reach, norm: float) -> Reach:
    """What is left of a reach where longer reports are scaled down to a norm: the ends are, in opposite directions."""
    lowest, highest = np.maximum(found.lowest, -norm), np.minimum(found.highest, norm)
    bound = found.bound if found.length <= 2 * norm else "the norm that plans announce"
    return replace(found, lowest=lowest, highest=highest, length=min(found.length, 2 * norm), bound=bound)


def in_sum(tally: Tally, counts: Sequence[int], group: int) -> Influence:
    """On the mean of a round in which every class is summed securely: one client can put its class's sum anywhere."""
    alone = on_mean(tally, counts, group)
    if tally.upload.samples:
        return replace(alone, share=1.0)
    return replace(alone, share=min(1.0, alone.share * counts[group]))


def on_model(given: Any, mean: Influence, lr: float = 1.0) -> Influence:
    """The same on the model; `given` is a recipe's method, `lr` the step along gradients where these are sent."""
    if given.name == "hybrid-one":
        return replace(mean, step=given.server_lr * lr)
    if given.name == "personalized":
        return replace(mean, step=math.inf, most=2.0) if given.sends == "signs" else mean
    if given.aggregation.kind == "sign":
        return replace(mean, step=math.inf, most=2 * given.server_lr * given.aggregation.step)
    return replace(mean, step=given.server_lr)


def worst_class(tally: Tally, counts: Sequence[int], own: int) -> Influence:
    """What a client gains by a lie about its epsilon: the class, of those there are, in which it could do most.

    `counts` has the client in its own class; it leaves that for the other.
    """
    found = []
    for group in range(len(counts)):
        moved = list(counts)
        moved[own] -= 1
        moved[group] += 1
        found.append(on_mean(tally, moved, group))
    return max(found, key=lambda influence: influence.value)


__all__ = ["Influence", "on_mean", "on_model", "worst_class"]
