"""Whether the tables of a recipe fit each other: what concerns the recipe as a whole, and what its parts say.

Each check names the keys it reads. Where one of them is wrong by itself, the check is left out: what it would say rests
on a value that was not meant. What concerns a single part stands beside that part (`sordino.parts.tables.reads`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from pydantic import BaseModel

from sordino.learning.datasets import KNOWN
from sordino.parts.strengths import strength_problems
from sordino.parts.tables import Found, Spec, missing_or_superfluous
from sordino.parts.toml import shown
from sordino.parts.words import Location, Problem, nearest
from sordino.recipe.grammar import BudgetRule, Sections
from sordino.recipe.task_checks import task_conflicts

_Find = Callable[[Sections], Found]
_CHECKS: list[tuple[tuple[str, ...], _Find]] = []


def _reads(*keys: str) -> Callable[[_Find], _Find]:
    def register(find: _Find) -> _Find:
        _CHECKS.append((keys, find))
        return find

    return register


def conflicts(recipe: Sections, unusable: Sequence[Location] = ()) -> list[Problem]:
    """What does not fit together, in the order of the tables, leaving out all that reads an unusable place."""
    found = []
    parts = ((place, keys, find) for place, part in _parts(recipe, ()) for keys, find in part.checks())
    for place, keys, find in chain((((), keys, find) for keys, find in _CHECKS), parts):
        read = [_location(place, key) for key in keys]
        if not any(_overlap(one, other) for one in read for other in unusable):
            found += [Problem(_location(place, key), text) for key, text in find(recipe)]
    order = list(Sections.model_fields)
    return sorted(found, key=lambda problem: order.index(str(problem.path[0])))


def _parts(table: BaseModel, place: Location) -> Iterator[tuple[Location, Spec]]:
    if isinstance(table, Spec):
        yield place, table
    for name in type(table).model_fields:
        inner = getattr(table, name)
        if isinstance(inner, BaseModel):
            yield from _parts(inner, (*place, name))


def _location(place: Location, key: str) -> Location:
    """The place of a key such as `clients.epsilon`, or of a part's own key such as `.sizes[3]`."""
    words = re.findall(r"[^.\[\]]+|\[\d+\]", key)
    parts = tuple(int(word[1:-1]) if word.startswith("[") else word for word in words)
    return (*place, *parts) if key.startswith(".") else parts


def _overlap(one: Location, other: Location) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


# --- data -------------------------------------------------------------------------------------------------------------

ANSWERS = ("classes", "labels", "target")  #: what is learnt, of which own data has one
OWN_FIELDS = (*ANSWERS, "label", "features", "columns", "test", "channels", "mean", "std", "arguments")
_NEEDS = {
    "known": (),
    "function": (),
    "npz": ("classes", "mean", "std"),
    "table": ("classes", "label", "test", "mean", "std"),
    "images": ("classes", "test", "mean", "std"),
    "memory": (),  # what it needs depends on its form: learning.memory says it
}
_MAY_HAVE = {
    "known": (),
    "function": ("arguments",),
    "npz": (),
    "table": ("features", "columns"),
    "images": ("channels",),
    "memory": (*ANSWERS, "label", "features", "columns", "test", "mean", "std"),
}
_NOT_WITH_COLUMNS = ("features", "mean", "std")
_WHOM = {
    "known": "the known data set {source}, whose classes and constants are published,",
    "function": "a function that returns a Dataset, with its classes and constants,",
    "npz": "an .npz file of your own",
    "table": "a table of your own",
    "images": "a folder of your own images",
    "memory": "data in memory",
}


@_reads("data.source", *(f"data.{name}" for name in OWN_FIELDS), "evaluation.private")
def _the_source_is_known_and_described(recipe: Sections) -> Found:
    data = recipe.data
    origin = data.origin
    if origin is None:
        yield (
            "data.source",
            f"unknown data set {data.source!r}; {nearest(data.source, KNOWN)}known: {', '.join(KNOWN)}; your own is "
            "a path to an .npz or .csv file, a folder of images written with a slash (./scans), or "
            "'package.module:Class'",
        )
        return
    whom = _WHOM[origin].format(source=data.source)
    needs, may_have = _NEEDS[origin], _MAY_HAVE[origin]
    if recipe.evaluation.private is not None and "test" in needs:  # clients' own records may be all that there is
        needs, may_have = tuple(name for name in needs if name != "test"), (*may_have, "test")
    if data.columns is not None and "columns" in may_have:
        whom += " with data.columns"
        needs, may_have = (tuple(n for n in names if n not in _NOT_WITH_COLUMNS) for names in (needs, may_have))
    given = [name for name in ANSWERS if getattr(data, name) is not None]
    if origin in ("npz", "table", "memory") and given:
        if len(given) > 1:
            yield f"data.{given[1]}", f"given beside data.{given[0]}; allowed: one of {', '.join(ANSWERS)}"
        unlabelled = ("label",) if given[0] == "labels" else ()
        needs = tuple(given[0] if name == "classes" else name for name in needs if name not in unlabelled)
    others = [name for name in OWN_FIELDS if name not in given[1:]]
    for key, text in missing_or_superfluous(data, needs, may_have, others, whom):
        yield f"data{key}", text


@_reads("data.columns", "data.label", "data.labels")
def _columns_go_by_name(recipe: Sections) -> Found:
    columns, label = recipe.data.columns or {}, recipe.data.label
    if columns and isinstance(label, int):
        yield ("data.label", f"got {label}; allowed beside data.columns: a name, as the columns have names")
    for name in (label, *(recipe.data.labels or ())):
        if name in columns:
            yield (f"data.columns.{name}", "is a label; allowed: columns to learn from, so leave it out")


@_reads("data", "split", "method", "model", "evaluation", "rounds")
def _the_parts_fit_what_is_learnt(recipe: Sections) -> Found:
    data = recipe.data
    if data.task is not None and data.origin is not None:
        names = KNOWN[data.source].classes if data.origin == "known" else data.names
        yield from task_conflicts(recipe, data.task, names)


@_reads("data.classes", "data.labels", "data.target", "data.mean", "data.std", "data.channels")
def _public_constants_are_coherent(recipe: Sections) -> Found:
    data = recipe.data
    if data.classes is not None and (len(set(data.classes)) != len(data.classes) or len(data.classes) < 2):
        yield ("data.classes", f"got {shown(data.classes)}; allowed: at least two names, all different")
    if data.labels is not None and (len(set(data.labels)) != len(data.labels) or not data.labels):
        yield ("data.labels", f"got {shown(data.labels)}; allowed: one or more names, all different")
    if data.target is not None and data.task is None:
        yield ("data.target", f"got {shown(data.target)}; allowed: [low, high], two finite numbers, low below high")
    if data.mean and data.std and len(data.mean) != len(data.std):
        yield ("data.std", f"got {len(data.std)} for {len(data.mean)} means; allowed: as many as data.mean")


# --- training and clients ---------------------------------------------------------------------------------------------


@_reads("training.epochs", "training.steps")
def _epochs_or_steps(recipe: Sections) -> Found:
    training = recipe.training
    if training.epochs is not None and training.steps is not None:
        yield ("training.epochs", f"got {training.epochs} beside steps = {training.steps}; allowed: one of the two")


@_reads("clients.epsilon", "split")
def _an_epsilon_for_each_client(recipe: Sections) -> Found:
    yield from strength_problems("clients.epsilon", recipe.clients.epsilon, recipe.number_of_clients)


@_reads("clients.budget", "split")
def _a_limit_for_each_client(recipe: Sections) -> Found:
    if isinstance(recipe.clients.budget, BudgetRule):
        yield from strength_problems("clients.budget.limit", recipe.clients.budget.limit, recipe.number_of_clients)


# --- rounds -----------------------------------------------------------------------------------------------------------


@_reads("method.selection", "method.channel", "split", "rounds.quorum")
def _a_quorum_can_be_met(recipe: Sections) -> Found:
    asked = recipe.method.channel.handed_on(recipe.method.selection.asked(recipe.number_of_clients))
    if recipe.rounds.quorum > asked:
        yield ("rounds.quorum", f"got {recipe.rounds.quorum}; allowed: at most {asked}, the clients asked in a round")


@_reads("evaluation.private", "method")
def _set_aside_records_leave_a_public_size(recipe: Sections) -> Found:
    if recipe.evaluation.private is not None and getattr(recipe.method, "announced_size", 1) == 0:
        yield (
            "method.announced_size",
            "missing; how many records are left to train on, once some are set aside (evaluation.private), is private: "
            "announce a public size, such as 80 % of a client's records",
        )


@_reads("rounds", "data")
def _stopping_has_something_to_go_by(recipe: Sections) -> Found:
    rounds = recipe.rounds
    used = [name for name in ("target_accuracy", "patience", "stop") if getattr(rounds, name)]
    untested = recipe.data.origin in ("table", "images") and recipe.data.test is None
    if used and rounds.stop_on == "test" and untested:
        yield ("rounds.stop_on", "got test, but there are no test examples: state data.test, or leave the rule out")
    if used and rounds.stop_on == "validation" and not recipe.data.validation:
        rule = getattr(rounds, used[0])
        yield (
            f"rounds.{used[0]}",
            f"got {shown(getattr(rule, 'kind', rule))}, but no examples are set aside to decide it: set "
            'data.validation above 0, or rounds.stop_on = "test" where the test set is public',
        )
