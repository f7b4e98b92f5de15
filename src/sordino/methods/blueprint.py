"""What a method is built from: the recipe, the model, and what is public about clients and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.learning.tasks import CLASSES, LearningTask
from sordino.methods.upload import MAX_SAMPLES, Upload
from sordino.parts.lazy import lazy_module

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sordino.learning import losses, models
    from sordino.learning.cohort import LocalTraining
    from sordino.learning.models import Loss, ParameterLayout
    from sordino.mechanisms.spec import RangeSpec
    from sordino.recipe import Recipe
else:
    losses = lazy_module("sordino.learning.losses")
    models = lazy_module("sordino.learning.models")  # it loads PyTorch


UNCONTAINED = (
    "own code computes on the records in the client's own process, and one record at which it ended that process, hung "
    "or took all memory would silence the client, which the server sees: take a network, a loss, kinds of columns and "
    "an extractor that Sordino ships"
)
UNDECLARED = (
    "nobody declared that own code keeps nothing from one record to the next and draws nothing (model.per_record), and "
    f"no test can show it; besides, {UNCONTAINED}"
)


def unproven_code(recipe: Recipe) -> str | None:
    """Why nothing is proven of single records that own code computes on; None where there is no such code."""
    if not recipe.computes_by_own_code:
        return None
    return UNDECLARED if recipe.is_foreign else UNCONTAINED


@dataclass(frozen=True)
class Statistics:
    """What becomes of batch norm's running statistics: kept by each client, or part of what is sent."""

    start: Mapping[str, Tensor] = field(default_factory=dict)  #: as the model has them
    released: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, policy: str) -> Statistics:
        """Those of a model, under a recipe's policy; `refuse` refuses a model that has any."""
        released = models.released_buffers(model, policy)
        tracked = set(models.running_statistics(model))
        start = {name: value.detach().clone() for name, value in model.named_buffers() if name in tracked}
        return cls(start, released)

    @property
    def size(self) -> int:
        """How many values are sent beside the parameters."""
        return sum(self.start[name].numel() for name in self.released)


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A recipe with its model built and its clients counted."""

    recipe: Recipe
    model: nn.Module
    layout: ParameterLayout
    statistics: Statistics
    sizes: tuple[int, ...]  #: how many records each client trains on; a simulation knows
    input_shape: tuple[int, ...]
    classes: int  #: how many scores the model gives
    own: int | None = None  #: the client that builds this for itself and needs no other's mechanism
    task: LearningTask = CLASSES

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    @property
    def checked(self) -> Sequence[int]:
        """The clients whose mechanisms are built at once, so that what they do not allow is refused before any work."""
        return range(self.clients) if self.own is None else (self.own,)

    @property
    def initial(self) -> NDArray[np.float32]:
        """The parameters `[d]` that training starts from."""
        fresh = self.recipe.model.starts_fresh
        start = models.initial_parameters(self.model, self.recipe.seed) if fresh else models.own_parameters(self.model)
        return self.layout.flatten(start).numpy()

    @property
    def values(self) -> int:
        """How many values the whole model has, with statistics that are released."""
        return self.layout.size + self.statistics.size

    @property
    def sent_layout(self) -> ParameterLayout:
        """The layout of what is sent: the layers, and released statistics as one more, called `statistics`."""
        if not self.statistics.size:
            return self.layout
        more = models.LayerSlice("statistics", self.layout.size, self.values)
        return replace(self.layout, layers=(*self.layout.layers, more))

    def upload(
        self, what: str, within: RangeSpec | None, *, most_samples: int = MAX_SAMPLES, norm: float | None = None
    ) -> Upload:
        """The whole model through the recipe's mechanism; what range or strengths do not allow is refused now."""
        given = self.recipe.method
        upload = Upload(
            given.mechanism.builder(within, self.sent_layout.layers, self.values),
            self.recipe.epsilons(),
            self.values,
            clients=self.clients,
            what=f"{what} and batch-norm statistics" if self.statistics.size else what,
            samples=given.aggregation.samples,
            most_samples=most_samples,
            norm=norm,
        )
        upload.check(self.checked)
        return upload

    @property
    def local_training(self) -> LocalTraining:
        """The recipe's plain local training."""
        return self.recipe.training.local(self.loss, self.input_shape)

    @property
    def loss(self) -> Loss:
        """What the model learns by; of somebody's own loss, what does not work is refused now."""
        given = self.recipe.model
        found = losses.loss_of(given.name, given.loss, self.task)
        return losses.checked_own(found, self.task, self.classes) if given.own_loss else found


def model_as_built(recipe: Recipe, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, tuple[int, ...]]:
    """The recipe's model before any file is read, and the shape of a record as it sees it."""
    seen = recipe.method.record_shape(recipe, shape, classes)
    given = recipe.model
    return models.build(given.name, recipe.seed, input_shape=seen, classes=classes, **given.options), seen


def blueprint_of(
    recipe: Recipe,
    shape: tuple[int, ...],
    classes: int,
    sizes: tuple[int, ...],
    own: int | None = None,
    task: LearningTask = CLASSES,
) -> tuple[Blueprint, tuple[int, ...]]:
    """What a method is built from, and the shape of a record as the model sees it: all that takes no data.

    `sizes` are the numbers of the clients' records. A client gives a public one for all, and its own number as `own`.
    It reads no file that the recipe names: where training starts, plans say.
    """
    model, seen = model_as_built(recipe, shape, classes)
    if recipe.model.start_file is not None and own is None:
        models.load_weights(model, Path(recipe.model.start_file), "model.start", recipe.model.name)
    statistics = Statistics.of(model, recipe.model.buffers)
    return Blueprint(recipe, model, models.parameter_layout(model), statistics, sizes, shape, classes, own, task), seen


__all__ = [
    "UNCONTAINED", "UNDECLARED", "Blueprint", "Statistics", "blueprint_of", "model_as_built", "unproven_code",
]  # fmt: skip
