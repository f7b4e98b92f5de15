"""From a client's update of the model to pictures of its records: closed forms where they hold, searches elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sordino.audits import closed_form, gradient_matching
from sordino.audits.closed_form import DenseLayer
from sordino.audits.gradient_matching import LocalSteps, Pixels, SearchEffort
from sordino.audits.linear_decoder import decode
from sordino.learning.models import ParameterLayout, parameter_layout

if TYPE_CHECKING:
    from sordino.audits.attack_options import Watch

CLOSED, FEATURES, MATCHED = "closed form", "features inverted", "gradient matching"
REFINED = f"{FEATURES}, then {MATCHED}"
WAYS = (CLOSED, FEATURES, MATCHED, REFINED)
REFINING = 0.02  #: the pace of a search that begins at a decoded picture
AT_ONCE = 256  #: pictures whose features are computed at a time
LATER = 0.38  #: features after several local steps are those of a model this far along the update


@dataclass(frozen=True, eq=False)
class UpdateAttack:
    """What the attacker knows: the model that was sent, how clients train, and how pixels become records."""

    model: nn.Module
    start: Tensor  #: `[d]`, the parameters that were sent
    pixels: Pixels
    rates: Sequence[float]  #: of the local steps of a client with one record
    effort: SearchEffort = field(default_factory=SearchEffort)
    seed: int = 1
    public: Tensor | None = None  #: pictures `[N, *shape]` that the attacker has anyway, none of them a candidate
    watch: Watch | None = None

    @cached_property
    def layout(self) -> ParameterLayout:
        """How parameters lie in an update."""
        return parameter_layout(self.model)

    @cached_property
    def dense(self) -> DenseLayer | None:
        """The first dense layer."""
        return closed_form.first_dense(self.model)

    @property
    def how(self) -> str:
        """The way that `of_one` takes."""
        if self.dense is None:
            return MATCHED
        if self.dense.takes_records:
            return CLOSED
        return REFINED if len(self.rates) > 1 else FEATURES  # several local steps change features as they go

    def of_one(self, updates: Tensor, how: str | None = None) -> Tensor:
        """Pictures `[K, *shape]` of clients with one record each, from their updates `[K, d]`."""
        way = how or self.how
        if way == MATCHED:
            return self._matched(updates, None)
        if self.dense is None:
            raise ValueError(f"{type(self.model).__name__} has no dense layer with a bias to begin with")
        inputs = closed_form.input_of_one(*self.dense.gradients(updates, self.layout))
        found = self._pictures(inputs, updates)
        return self._matched(updates, found) if way == REFINED else found

    def of_many(self, updates: Tensor, most: int) -> Tensor:
        """Pictures `[K, P, *shape]` of clients with several records each, P <= `most` pictures of each client."""
        if self.dense is None:
            return self._matched(updates, None).unsqueeze(1)
        rows = closed_form.inputs_of_rows(*self.dense.gradients(updates, self.layout), most)
        each = rows.shape[1]
        found = self._pictures(rows.flatten(0, 1), updates.repeat_interleave(each, dim=0))
        return found.reshape(len(updates), each, *self.pixels.shape)

    def _pictures(self, inputs: Tensor, updates: Tensor) -> Tensor:
        """Pictures `[N, *shape]` of what goes into the dense layer, `[N, r]`."""
        assert self.dense is not None
        if self.dense.takes_records:
            return self.pixels.pictures(inputs.reshape(len(inputs), *self.pixels.shape))
        start = self.layout.unflatten(self.start)
        later = self.layout.unflatten(self.start + LATER * updates) if len(self.rates) > 1 else start
        first, effort = None, self.effort
        if self.public is not None:  # a search that begins near its end needs one start
            known = self._features(self.public, start)
            pixels = decode(known, self.public.flatten(1), inputs).reshape(len(inputs), *self.pixels.shape)
            first, effort = pixels.to(self.start), replace(self.effort, starts=1, pace=REFINING)
        return gradient_matching.invert_features(
            self.dense.before, inputs, self.pixels, effort, self.seed, later, first, self.watch
        )

    def _features(self, pictures: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        """What goes into the dense layer, `[N, r]`, for pictures."""
        assert self.dense is not None
        alone = gradient_matching.each_alone(self.dense.before)
        own = {name: parameters[name] for name, _ in alone.named_parameters()}
        with torch.no_grad():
            pieces = torch.split(self.pixels.shown_to_model(pictures), AT_ONCE)
            return torch.cat([functional_call(alone, own, (piece,)) for piece in pieces])

    def _matched(self, updates: Tensor, first: Tensor | None) -> Tensor:
        steps = LocalSteps(self.model, self.layout, self.start, self.rates)
        labels = closed_form.label_of_one(updates, self.layout)
        effort = self.effort if first is None else replace(self.effort, starts=1, pace=self.effort.pace / 2)
        return gradient_matching.match_gradients(
            steps, updates, labels, self.pixels, effort, self.seed, first, self.watch
        )


__all__ = ["CLOSED", "FEATURES", "MATCHED", "REFINED", "WAYS", "UpdateAttack"]
