"""Whether the parts of a recipe fit what is learnt: classes, labels or a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput
from sordino.learning.tasks import CLASSIFICATION, LearningTask
from sordino.parts import registry
from sordino.parts.tables import Found, Spec
from sordino.parts.toml import shown
from sordino.report.words import listed

if TYPE_CHECKING:
    from sordino.recipe.grammar import Sections

PLAIN, ONE_VERSUS_REST = "cross-entropy", "logistic-ovr"
_TELLS = {"metric": "evaluation.metric.kind", "loss": "model.loss.kind", "split": "split.kind", "method": "method.name"}
_OTHER = {"loss": "; or your own, as package.module:function"}


def task_conflicts(recipe: Sections, task: LearningTask, names: Sequence[str]) -> Found:
    """Keys whose parts cannot carry the task of a network with one score for each of these names."""
    for part, table in _parts(recipe).items():
        if task.kind not in table.tasks:
            allowed = listed(list(_fitting(part, task)), "or") + _OTHER.get(part, "")
            got = shown(getattr(table, _TELLS[part].rpartition(".")[2]))
            yield _TELLS[part], f"got {got}, which does not fit {_a(task)}; allowed: {allowed}"
    loss, method = recipe.model.loss, recipe.method
    if loss is not None:
        if task.kind in loss.tasks and (why := loss.misfit(names)):
            yield "model.loss.weights", why
        if not method.takes_loss and loss != registry.make("loss", PLAIN):
            yield (
                "model.loss",
                f"got {shown(loss.kind)}, but {method.name} is made for the plain cross-entropy: leave it out, or take "
                "a method that trains by any loss, such as silo-dp or fedavg",
            )
        elif recipe.model.name == ONE_VERSUS_REST:
            yield "model.loss", f"got {shown(loss.kind)}, but {ONE_VERSUS_REST} has a loss of its own: take logistic"
    if task.kind != CLASSIFICATION and recipe.model.name == ONE_VERSUS_REST:
        yield "model.name", f"got {shown(ONE_VERSUS_REST)}, whose loss is of classes; allowed: logistic, or another"
    yield from _stopping_conflicts(recipe, task)


def _parts(recipe: Sections) -> Mapping[str, Spec]:
    found = {
        "split": recipe.split,
        "loss": recipe.model.loss,
        "method": recipe.method,
        "metric": recipe.evaluation.metric,
    }
    return {part: table for part, table in found.items() if table is not None}


def _fitting(part: str, task: LearningTask) -> Iterator[str]:
    return (name for name, table in registry.tables(part).items() if task.kind in getattr(table, "tasks", ()))


def _a(task: LearningTask) -> str:
    return {"regression": "a regression", "multi-label": "a multi-label task"}.get(task.kind, "a classification")


def _stopping_conflicts(recipe: Sections, task: LearningTask) -> Found:
    """A target accuracy needs a figure that grows with what the model knows and is at most 1."""
    metric = recipe.evaluation.metric or registry.make("metric", task.metric)
    rounds = recipe.rounds
    key = "rounds.target_accuracy" if rounds.target_accuracy else "rounds.stop"
    wants_share = rounds.target_accuracy or (rounds.stop is not None and rounds.stop.kind == "target")
    if wants_share and (metric.smaller_is_better or (task.kind != CLASSIFICATION and recipe.evaluation.metric is None)):
        yield (
            key,
            f"a target accuracy says nothing about {metric.kind}, by which this run is judged: give "
            'rounds.stop = { kind = "score", value = ... }',
        )


def check_task(recipe: Sections, task: LearningTask, names: Sequence[str]) -> None:
    """Refuse what does not fit the task; of data that a function makes it is not known before."""
    if found := [f"{key}: {text}" for key, text in task_conflicts(recipe, task, names)]:
        raise InvalidInput("; ".join(found))


__all__ = ["check_task", "task_conflicts"]
