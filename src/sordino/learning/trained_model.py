"""A trained network that takes raw inputs: what describes it, and the module that normalises for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, MinLen
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase as TracksStatistics

from sordino.errors import InvalidInput
from sordino.learning import models, own_data
from sordino.learning.columns import ColumnRules
from sordino.learning.examples import Normalisation
from sordino.learning.memory import frame_of
from sordino.learning.tables import read_unlabelled
from sordino.learning.tasks import MULTI_LABEL, REGRESSION, Kind, LearningTask, Regression, task_named
from sordino.parts import registry


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class HeadDescription(_Table):
    """What a linear head on public features needs beside its arrays."""

    extractor: dict[str, Any]  #: its table, as in the recipe
    roots: int
    groups: int
    limit: Annotated[int, Ge(1)]  #: length of whole unit vectors
    bias: float  #: the input that the bias sees


class ModelDescription(_Table):
    """All that is public about a trained model, as its file's metadata holds it."""

    recipe: str
    seed: int
    model: str  #: a model known by name, or `package.module:Class`
    options: dict[str, Any] = {}
    input_shape: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)]
    classes: Annotated[tuple[str, ...], MinLen(1)]  #: what scores stand for: classes, labels, or the one target
    task: Kind = "classification"
    target: tuple[float, float] | None = None  #: the public range of a regression, in the owner's unit
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()  #: a name for each value of a table's record, in order; empty where they had none
    declared: dict[str, dict[str, Any]] = {}  #: columns of a table by name, each with the rule for its cells
    #: raw records; features that only clients can make; or nothing, where there is no common model
    takes: Literal["records", "features", "nothing"] = "records"
    local_statistics: bool = False  #: whether batch-norm statistics stayed with the clients
    head: HeadDescription | None = None

    @classmethod
    def from_json(cls, text: str) -> ModelDescription:
        """The description in a file's metadata; `InvalidInput` names each wrong key."""
        try:
            found = cls.model_validate_json(text)
        except ValidationError as error:
            wrong = (f"{'.'.join(map(str, each['loc'])) or 'metadata'}: {each['msg']}" for each in error.errors())
            raise InvalidInput("; ".join(wrong)) from None
        found.normalisation.check(found.input_shape)
        if (found.task == REGRESSION) != (found.target is not None):
            raise InvalidInput("target: it is there for a regression, and for no other task")
        found.learns.check_names(found.classes)
        return found

    @property
    def rules(self) -> ColumnRules:
        """What the cells of declared columns become."""
        try:
            return {name: registry.make("column", table["kind"], **table) for name, table in self.declared.items()}
        except (AssertionError, KeyError, TypeError, ValidationError) as error:
            raise InvalidInput(f"the file's columns are not known here: {error}") from None

    @property
    def learns(self) -> LearningTask:
        """What it learnt: classes, labels or a number."""
        return task_named(self.task, self.target)

    @property
    def normalisation(self) -> Normalisation:
        """What is subtracted from inputs and what they are divided by."""
        return Normalisation(self.mean, self.std)


class TrainedModel(nn.Module):
    """A trained network for raw inputs, in evaluation mode.

    `classes` has the names of its scores; `labels` is the same of a multi-label task, and `target` the public range of
    a regression: both are None of other tasks.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, about: ModelDescription) -> None:
        super().__init__()
        self.network, self.about = network, about
        self.classes, self.input_shape, self.target = about.classes, about.input_shape, about.target
        self.labels = about.classes if about.task == MULTI_LABEL else None
        each = (1, -1) + (1,) * (len(about.input_shape) - 1)
        for name, values in (("mean", about.mean), ("std", about.std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).reshape(each), persistent=False)
        self._rules = about.rules
        self._one_versus_rest = models.loss_for(about.model) is models.one_versus_rest
        if about.local_statistics:
            _use_batch_statistics(network)
        self.eval()

    def forward(self, input: Tensor) -> Tensor:
        """Scores `[n, classes]` of raw inputs `[n, *input_shape]`: pixels from 0 to 255, columns in their own units."""
        if tuple(input.shape[1:]) != self.input_shape:
            raise InvalidInput(
                f"this model takes inputs of shape [n, {', '.join(map(str, self.input_shape))}], got "
                f"{list(input.shape)}"
            )
        scores: Tensor = self.network((input.to(torch.float32) - self.mean) / self.std)
        return scores

    def inputs(self, table: object) -> Tensor:
        """Raw inputs `[n, *input_shape]` of new records: the path of a .csv or .npz file, or a data frame.

        Declared columns, with their gaps, categories and text, are read as when the model was trained.
        """
        if isinstance(table, str | Path):
            found = own_data.read_inputs(table, self.input_shape, self.about.columns, self._rules)
        else:
            frame, width = frame_of(table), math.prod(self.input_shape)
            found = read_unlabelled(frame, width, self.about.columns, self._rules).reshape(-1, *self.input_shape)
        return torch.from_numpy(found)

    def probabilities(self, input: Tensor) -> Tensor:
        """Probabilities `[n, classes]` of raw inputs; of labels, and one-versus-rest models, each has its own."""
        if self.target is not None:
            raise InvalidInput("this model answers with a number, not with probabilities: use values(x)")
        scores: Tensor = self(input)
        return scores.sigmoid() if self._one_versus_rest or self.labels else scores.softmax(dim=1)

    def values(self, input: Tensor) -> Tensor:
        """Answers `[n]` of a regression for raw inputs, in the owner's unit and within the range `target`."""
        task = self.about.learns
        if not isinstance(task, Regression):
            raise InvalidInput("this model answers with probabilities, not with a number: use probabilities(x)")
        return task.value(self(input))

    def answers(self, input: Tensor) -> Tensor:
        """What the model is asked for: values of a regression, else probabilities."""
        return self.values(input) if self.target is not None else self.probabilities(input)


def _use_batch_statistics(network: nn.Module) -> None:
    """Let norm layers use the statistics of each batch, as the run was scored: nobody sent theirs."""
    for part in network.modules():
        if isinstance(part, TracksStatistics):
            part.track_running_stats = False
            part.running_mean = part.running_var = None


__all__ = ["HeadDescription", "ModelDescription", "TrainedModel"]
