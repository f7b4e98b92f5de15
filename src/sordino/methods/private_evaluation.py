"""Private evaluation: how good the common model is on records that clients set aside, from noisy counts.

    server    plan(state, name)           the model, in a plan of its own for the round after which it is evaluated
    client    report(plan, ..)            counts of right and wrong answers, with noise; of no records the noise alone
    server    estimates(sum, reports)     ratios of counts, each with the interval that noise and chance leave

A record is on one side by a public hash of itself (`learning.held_out`): held-out records are never trained on, and
those that are trained on are never counted here. What both sides release is charged in full, one after the other. That
holds whatever changes, also where an exchanged record moves from one side to the other (`with_sides`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.errors import STOPPING, InvalidInput
from sordino.learning.tasks import CLASSIFICATION, MULTI_LABEL, LearningTask, Regression
from sordino.mechanisms.noisy_counts import RECORDS, NoisyCounts
from sordino.methods.blueprint import UNCONTAINED, unproven_code
from sordino.methods.interface import DATASET, PARAMETERS, Method, State
from sordino.methods.upload import Draw
from sordino.privacy.guarantee import Adjacency, Guarantee, Infinite, Release
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sordino.learning.alone import Alone
    from sordino.learning.cohort import ClientData
    from sordino.learning.models import Loss
    from sordino.recipe import Recipe
    from sordino.recipe.grammar import PrivateFigures

EVALUATE = "evaluate"  #: the step in which a plan of this kind travels
WHAT = "private evaluation"
SETTINGS = {"evaluation": "held-out records"}  #: of a plan: no round of training has them
NORMAL = 1.959964  #: standard deviations on either side that hold 95 % of a normal distribution
FIGURES = {CLASSIFICATION: ("accuracy", "recall", "f1", "loss"), MULTI_LABEL: ("label-accuracy",)}
NUMBER_FIGURES = ("mae",)

Counts = NDArray[np.int64]
Weights = NDArray[np.float64]
Answering = Callable[["Tensor"], "Tensor"]  #: a record as it is `[1, ...]` -> the model's scores `[1, names]`

REMEMBERS = (
    "the model's answer to a public record changes once another was scored, or cannot be computed: what a record adds "
    "to counts is then no function of that record alone"
)


@dataclass(frozen=True)
class Estimate:
    """A figure from noisy counts, with its 95 % interval; no value where the noise drowns it."""

    name: str
    value: float | None
    interval: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Ratio:
    """A figure as a ratio of sums of counts, times `scale`; `top` and `bottom` weigh each of the counts `[d]`."""

    name: str
    top: Weights
    bottom: Weights
    scale: float = 1.0
    of_amounts: bool = False  #: whether what a record adds to the top may be any number from 0 to 1

    def estimate(self, counts: Weights, variance: float) -> Estimate:
        """By Fieller: all ratios t for which top - t bottom is not surprisingly far from 0.

        Its variance is that of the noise, `variance` in each count, and that of drawing so many records: of cells the
        counts themselves, of an amount with mean t at most n t (1 - t).
        """
        top, bottom = float(self.top @ counts), float(self.bottom @ counts)
        drawn = np.zeros_like(counts) if self.of_amounts else np.maximum(counts, 0.0)
        weights, z = variance + drawn, NORMAL**2
        n = max(bottom, 0.0) if self.of_amounts else 0.0
        square = bottom**2 - z * (float(weights @ self.bottom**2) - n)
        linear = -2 * top * bottom + z * (2 * float(weights @ (self.top * self.bottom)) - n)
        constant = top**2 - z * float(weights @ self.top**2)
        if bottom <= 0 or square <= 0:
            return Estimate(self.name, None, (0.0, self.scale))
        root = math.sqrt(max(0.0, linear**2 - 4 * square * constant))
        low, high = ((-linear + sign * root) / (2 * square) for sign in (-1, 1))
        within = [self.scale * min(1.0, max(0.0, t)) for t in (top / bottom, low, high)]
        return Estimate(self.name, within[0], (within[1], within[2]))


class Tallying:
    """Which cell a record's answer is in, which amounts it adds, and which figures follow from the sums."""

    def __init__(self, figures: Sequence[str], task: LearningTask, names: Sequence[str], loss_bound: float) -> None:
        self._task, self._classes, self._bound = task, len(names), loss_bound
        self.figures, self.names = tuple(figures), tuple(names)
        self._of_classes = task.kind == CLASSIFICATION
        kinds = {"f1": self._classes**2, "recall": 2 * self._classes, "accuracy": 2}
        self.cells = next((cells for name, cells in kinds.items() if name in figures), 1)
        self.amounts = int("loss" in figures or not self._of_classes)

    def sums(self, answer: Answering, x: Tensor, y: Tensor, weight: int, loss: Loss, alone: Alone) -> Counts:
        """The sums over records `x [n, ...]` with labels `y [n]`, in steps; `answer` scores one record `[1, ...]`.

        A record that cannot be scored adds nothing: an error that it causes must not take all others with it.
        """
        found = np.zeros(self.cells + self.amounts, np.int64)

        def of_record(one: Tensor, label: Tensor) -> Counts:
            return self.of_record(answer(one), label, weight, loss)

        with alone as compute:
            for one, label in zip(x, y, strict=True):
                try:
                    found += compute(of_record, one[None], label[None])
                except STOPPING:
                    raise
                except BaseException:
                    continue
        return found

    def of_record(self, scores: Tensor, y: Tensor, weight: int, loss: Loss) -> Counts:
        """What one record adds: `weight` in one cell, and at most that in the amounts. Other scores are refused."""
        if tuple(scores.shape) != (1, len(self.names)):
            raise InvalidInput(f"a model gave scores {list(scores.shape)} for one record, not [1, {len(self.names)}]")
        found = np.zeros(self.cells + self.amounts, np.int64)
        cell = self._cell(int(y[0]), int(scores[0].argmax())) if self._of_classes else 0
        assert 0 <= cell < self.cells
        found[cell] = weight
        if self.amounts:
            found[self.cells] = round(weight * self._amount(scores, y, loss))
        return found

    def _cell(self, truth: int, answer: int) -> int:
        if not 0 <= truth < self._classes:
            raise InvalidInput(f"a record has the class {truth}, of {self._classes} from 0 on")
        if "f1" in self.figures:
            return truth * self._classes + answer
        wrong = int(truth != answer)
        if "recall" in self.figures:
            return 2 * truth + wrong
        return wrong if "accuracy" in self.figures else 0

    def _amount(self, scores: Tensor, y: Tensor, loss: Loss) -> float:
        """From 0 to 1; what is no number counts as the worst."""
        if isinstance(self._task, Regression):
            found = abs(float(self._task.value(scores.float())[0]) - float(y[0])) / (2 * self._task.half)
        elif self._of_classes:
            found = float(loss(scores, y)) / self._bound
        else:
            found = float(((scores[0] > 0) == (y[0] == 1)).double().mean())
        return min(1.0, max(0.0, found)) if math.isfinite(found) else float(self.figures != ("label-accuracy",))

    def ratios(self) -> Iterator[Ratio]:
        """The figures."""
        everything = np.array([1.0] * self.cells + [0.0] * self.amounts)
        for figure in self.figures:
            if figure == "accuracy":
                yield Ratio(figure, self._right() * everything, everything)
            elif figure in ("recall", "f1"):
                yield from (self._of_class(figure, k) for k in range(self._classes))
            else:
                amount = np.array([0.0] * self.cells + [1.0])
                width = 2 * self._task.half if isinstance(self._task, Regression) else 1.0
                scale = self._bound if figure == "loss" else width
                yield Ratio(figure, amount, everything, scale, of_amounts=True)

    def _right(self) -> Weights:
        """1 for the cells of right answers."""
        right = np.zeros(self.cells + self.amounts)
        if "f1" in self.figures:
            right[: self.cells] = np.eye(self._classes).ravel()
        else:
            right[0 : self.cells : 2] = 1.0
        return right

    def _of_class(self, figure: str, k: int) -> Ratio:
        classes, rest = self._classes, [0.0] * self.amounts
        if "f1" not in self.figures:
            own = np.zeros((classes, 2))
            own[k] = 1.0
            bottom = np.array([*own.ravel(), *rest])
            return Ratio(f"{figure} of {self.names[k]}", bottom * self._right(), bottom)
        truth, answer = np.zeros((classes, classes)), np.zeros((classes, classes))
        truth[k], answer[:, k] = 1.0, 1.0
        hits = truth * answer
        top, below = (2 * hits, truth + answer) if figure == "f1" else (hits, truth)
        return Ratio(f"{figure} of {self.names[k]}", np.array([*top.ravel(), *rest]), np.array([*below.ravel(), *rest]))


class PrivateEvaluation:
    """Both sides of a recipe's private evaluation; `names` are the classes, the labels or the one target."""

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        model: nn.Module,
        loss: Loss,
        task: LearningTask,
        names: Sequence[str],
        shape: Sequence[int],
    ) -> None:
        spec = recipe.evaluation.private
        assert spec is not None
        self.spec: PrivateFigures = spec
        self._rounds, self._method = recipe.rounds.count, method
        self._model, self._loss = method.graded or model, loss
        _check_method(method)
        self.tallying = Tallying(_figures(spec, task), task, names, spec.loss_bound)
        times, target = spec.times(self._rounds), spec.target
        self.counts = NoisyCounts.within(
            self.tallying.cells, self.tallying.amounts, epsilon=target.epsilon, delta=target.delta, times=times
        )
        self.unproven = method.unproven or unproven_code(recipe)  #: why nothing is proven of it, if so
        if self.unproven == UNCONTAINED and self._remembers(task, shape):
            self.unproven = REMEMBERS

    def due(self, round: int) -> bool:
        """Whether the model is evaluated after this round."""
        return self.spec.due(round, self._rounds)

    # --- server

    def plan(self, state: State, federation: str) -> Plan:
        """What all clients are sent after round `state.round`: the model as it is then."""
        view = self._method.view(state)
        return Plan(federation, state.round, SETTINGS, {PARAMETERS: view.parameters, **(view.buffers or {})})

    def decode(self, body: bytes) -> Counts:
        """The noisy counts of one report; anything that no client can send is refused."""
        return self.counts.decode(body)

    def estimates(self, total: Counts, reports: int) -> tuple[Estimate, ...]:
        """The figures, from the sum of so many reports."""
        counts, variance = total / self.counts.weight, reports * self.counts.deviation**2
        return tuple(ratio.estimate(counts, variance) for ratio in self.tallying.ratios())

    def records(self, total: Counts, reports: int) -> tuple[float, float]:
        """How many records were counted, without bias, and the standard deviation of that."""
        cells = self.tallying.cells
        found = float(total[:cells].sum()) / self.counts.weight
        return found, math.sqrt(reports * cells) * self.counts.deviation

    # --- client

    def releases(self, federation: str, round: int) -> tuple[Release, ...]:
        """What a report on the plan of this round tells of its client."""
        guarantees = tuple(self.counts.guarantee(adjacency) for adjacency in RECORDS)
        release = Release(f"{federation}/{round}/{WHAT}", DATASET, WHAT, guarantees)
        return (release if self.unproven is None else release.unproven_of_records(self.unproven),)

    def report(self, plan: Plan, data: ClientData | None, draw: Draw, client: int) -> bytes:
        """The noisy counts of one client's held-out records; of none, the noise alone."""
        return self.counts.encode(self.counts.randomize(self.exact(plan, data), draw([client])))

    def exact(self, plan: Plan, data: ClientData | None) -> Counts:
        """The counts before their noise, in steps: they never leave a client."""
        from sordino.learning.alone import Alone

        if data is None:
            return np.zeros(self.counts.values, np.int64)
        answer = self._answering(plan)
        x, y = data.x.cpu(), data.y.cpu()
        return self.tallying.sums(answer, x, y, self.counts.weight, self._loss, Alone(self._model))

    def _answering(self, plan: Plan) -> Answering:
        """How the plan's model scores one record: as the method shows it, and by itself."""
        import torch

        from sordino.learning.evaluation import answers_alone

        buffers = {name: value for name, value in plan.arrays.items() if name != PARAMETERS} or None
        answer = answers_alone(self._model, plan.arrays[PARAMETERS], buffers)
        if not self._method.shows:
            return answer
        return lambda one: answer(torch.from_numpy(np.asarray(self._method.shown(one))))

    def _remembers(self, task: LearningTask, shape: Sequence[int]) -> bool:
        """Whether a public record counts otherwise once another was scored, or cannot be scored at all."""
        import torch

        from sordino.learning.alone import Alone
        from sordino.learning.stacked_model import probes

        x, y = probes(shape), torch.from_numpy(task.numbered(np.array([0, 1]), len(self.tallying.names)))

        def in_turn(order: Sequence[int]) -> list[tuple[bytes, bytes]]:
            answer, found = self._answering(self.plan(self._method.init(), "")), []
            for k in order:
                scores = answer(x[k : k + 1].clone())
                bits = scores.numpy().tobytes()
                own = self.tallying.of_record(scores, y[k : k + 1].clone(), self.counts.weight, self._loss)
                found.append((bits, own.tobytes()))
            return found

        try:
            with Alone():
                before, _, again = in_turn((0, 1, 0))
                _, after = in_turn((1, 0))
        except (Exception, SystemExit):
            return True
        return not before == again == after

    @cached_property
    def epsilon(self) -> float:
        """What one evaluation costs for one record added or removed, at the target's delta; infinite if unproven."""
        if self.unproven is not None:
            return math.inf
        return self.counts.epsilon(Adjacency.RECORD_ADD_REMOVE, self.spec.target.delta)


def private_evaluation(
    recipe: Recipe, method: Method, model: nn.Module, task: LearningTask, names: Sequence[str], shape: Sequence[int]
) -> PrivateEvaluation | None:
    """A recipe's private evaluation of records of this shape; None where it asks for none."""
    if recipe.evaluation.private is None:
        return None
    from sordino.learning import losses

    loss = losses.loss_of(recipe.model.name, recipe.model.loss, task)
    return PrivateEvaluation(recipe, method, model, loss, task, names, shape)


def _figures(spec: PrivateFigures, task: LearningTask) -> tuple[str, ...]:
    known = FIGURES.get(task.kind, NUMBER_FIGURES)
    if strange := [name for name in spec.figures if name not in known]:
        raise InvalidInput(
            f"evaluation.private.figures: got {strange[0]!r}; allowed where {task} is learnt: {', '.join(known)}"
        )
    return spec.figures or known[:1]


def _check_method(method: Method) -> None:
    """Refuse a method without one common model that sees every record as it is."""
    from sordino.learning.models import has_batch_norm

    name = method.spec.name
    if method.preparation("") is not None or type(method).views is not Method.views:
        raise InvalidInput(
            f"evaluation.private: {name} has no common model that clients could score their own records with: leave "
            "evaluation.private out, or take another method, such as silo-dp or fedavg"
        )
    if has_batch_norm(method.model) and not method.statistics.released:
        raise InvalidInput(
            'evaluation.private: the model has batch norm, the statistics of which stay with clients (model.buffers = "'
            'local"), so that a record is scored by its neighbours too: set model.buffers = "release", or take a model '
            "without batch norm"
        )


# --- what the sides mean for the releases of training -----------------------------------------------------------------

_MOVES = (
    "an exchanged record may be one that was trained on and be replaced by one that is not: set aside, held out for a "
    "test, or left out as it cannot be read. Nothing is proven of a record that is only removed"
)


def with_sides(release: Release) -> Release:
    """A release of training on some of the records.

    Others are set aside or held out by a hash of themselves, or left out of files because they cannot be read.

    For a record that is added or removed nothing changes. An exchange may take a record out of training without another
    in its place. So its figure stands only where a finite one for a removed record, which is never larger, stands
    beside it. Else it is that of the whole client, where that is finite. So is that of a label: hashes are of it, too.
    """
    finite = {(own.adversary, own.adjacency): own for own in release.guarantees if not isinstance(own.loss, Infinite)}

    def moved(own: Guarantee) -> Guarantee:
        removed = (own.adversary, Adjacency.RECORD_ADD_REMOVE) in finite
        if own.adjacency is not Adjacency.LABEL and (own.adjacency is not Adjacency.RECORD_REPLACE or removed):
            return own
        if isinstance(own.loss, Infinite):
            return own
        if (client := finite.get((own.adversary, Adjacency.CLIENT))) is not None:
            return replace(client, adjacency=own.adjacency)
        return replace(own, loss=Infinite(_MOVES), basis="none")

    return replace(release, guarantees=tuple(map(moved, release.guarantees)))


__all__ = [
    "EVALUATE", "WHAT", "Estimate", "PrivateEvaluation", "Ratio", "Tallying", "private_evaluation", "with_sides",
]  # fmt: skip
