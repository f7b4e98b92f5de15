"""What is wrong with a recipe is said at once, each in one line: where, what was given, what is allowed."""

import copy
import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.recipe import Recipe, RecipeInvalid

VALID = """
name = "valid"

[data]
source = "digits"
validation = 0.1

[split]
kind = "iid"
clients = 20

[model]
name = "logistic"

[training]
epochs = 1

[training.optimizer]
name = "sgd"
lr = 0.1

[clients]
epsilon = { linear = [2, 8] }

[clients.budget]
limit = 10

[method]
name = "fedavg"

[method.selection]
kind = "count"
k = 10

[method.range]
kind = "fixed"
radius = 0.1

[method.mechanism]
name = "two-point"

[method.aggregation]
kind = "mean"

[rounds]
count = 3
"""


def table() -> dict[str, Any]:
    return Recipe.from_toml(VALID).model_dump(mode="json", exclude_unset=True)


def put(data: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The table with a value at a dotted key; None takes the key away."""
    *path, last = key.split(".")
    inner = data
    for name in path:
        inner = inner.setdefault(name, {})
    if value is None:
        inner.pop(last, None)
    else:
        inner[last] = value
    return data


def problems(data: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(RecipeInvalid) as caught:
        Recipe.from_dict(data)
    for problem in caught.value.problems:
        assert "\n" not in problem
        assert not re.search(r"Input should|valid string|pydantic|https?://|Value error|validation error", problem)
    return caught.value.problems


def changed(**changes: Any) -> tuple[str, ...]:
    data = table()
    for key, value in changes.items():
        put(data, key.replace("__", "."), value)
    return problems(data)


# --- single keys ------------------------------------------------------------------------------------------------------

SINGLE: dict[str, tuple[str, Any, str]] = {
    "missing text": ("name", None, "name: missing; names the run's folder (allowed: letters, digits"),
    "missing table": ("data", None, "data: missing; the examples (allowed: a table)"),
    "missing union": (
        "method",
        None,
        "method: missing; the algorithm (allowed: a table with one of these forms: fedavg",
    ),
    "missing number": (
        "split.clients",
        None,
        "split.clients: missing; number of clients (allowed: a whole number >= 1",
    ),
    "missing kind": (
        "split.kind",
        None,
        "split.kind: missing; allowed: iid, sizes, dirichlet, shards, files or column",
    ),
    "missing kind of a single form": ("method.range.kind", None, "method.range.kind: missing; allowed: fixed"),
    "pattern": ("name", "a/b", 'name: got "a/b"; allowed: letters, digits, - and _, at most 100'),
    "empty text": ("model.name", "", 'model.name: got ""; allowed: text, not empty'),
    "two lines": ("summary", "a\nb", r'summary: got "a\nb"; allowed: text on one line'),
    "text for a number": ("training.epochs", "5", 'training.epochs: got "5"; allowed: a whole number >= 1'),
    "number for text": ("name", 5, "name: got 5; allowed: letters, digits"),
    "fraction for a whole": ("training.epochs", 1.5, "training.epochs: got 1.5; allowed: a whole number >= 1"),
    "truth for a whole": ("training.epochs", True, "training.epochs: got true; allowed: a whole number >= 1"),
    "whole for truth": ("training.shuffle", 1, "training.shuffle: got 1; allowed: true or false"),
    "too small": ("training.epochs", 0, "training.epochs: got 0; allowed: a whole number >= 1"),
    "too large": ("seed", 2**64, "seed: got 18446744073709551616; allowed: a whole number from 0 to 2^64 - 1"),
    "outside an open range": ("data.validation", 1, "data.validation: got 1; allowed: a number >= 0 and < 1"),
    "infinite": ("method.server_lr", float("inf"), "method.server_lr: got inf; allowed: a number > 0"),
    "not a number": ("method.server_lr", float("nan"), "method.server_lr: got nan; allowed: a number > 0"),
    "misspelt key": (
        "training.epoch",
        1,
        "training.epoch: unknown key; did you mean 'epochs'? keys here: steps, epochs",
    ),
    "misplaced strength": ("method.epsilon", 1.0, "method.epsilon: unknown key; did you mean 'clients.epsilon'? "),
    "misplaced key": ("epochs", 1, "epochs: unknown key; did you mean 'training.epochs'? keys here: name, title"),
    "option of a model": (
        "model.norm",
        "group",
        "model.norm: unknown key; did you mean 'method.norm'? an option of the model is set as "
        "model.options.norm; keys here: name, options",
    ),
    "strange key": ("training.zzz", 1, "training.zzz: unknown key; keys here: steps, epochs"),
    "quoted key": ("training.a b", 1, 'training."a b": unknown key; '),
    "key of another form": (
        "split.beta",
        1,
        "split.beta: belongs to dirichlet, not to iid: leave it out, or change kind",
    ),
    "misspelt kind": ("split.kind", "idd", "split.kind: got \"idd\"; did you mean 'iid'? allowed: iid, sizes, "),
    "unknown kind": ("split.kind", "zzz", 'split.kind: got "zzz"; allowed: iid, sizes, '),
    "kind of a wrong type": ("split.kind", 5, "split.kind: got 5; allowed: iid, sizes, "),
    "misspelt mechanism": (
        "method.mechanism.name",
        "twopoint",
        "method.mechanism.name: got \"twopoint\"; did you mean 'two-point'? allowed: none, clip-only",
    ),
    "misspelt single form": (
        "method.range.kind",
        "fix",
        "method.range.kind: got \"fix\"; did you mean 'fixed'? allowed",
    ),
    "misspelt choice": ("rounds.stop_on", "tests", "rounds.stop_on: got \"tests\"; did you mean 'test'? allowed: "),
    "choice of numbers": ("data.channels", 2, "data.channels: got 2; allowed: 1 or 3"),
    "value for a table": ("training", 5, "training: got 5; allowed: a table"),
    "value for a union": ("method", "fedavg", 'method: got "fedavg"; allowed: a table with one of these forms: fedavg'),
    "value for a list": (
        "clients.allow_unproven",
        "all",
        'clients.allow_unproven: got "all"; allowed: a list of texts',
    ),
    "wrong in a list": ("clients.allow_unproven", ["a", 2], "clients.allow_unproven[1]: got 2; allowed: text"),
    "two kinds of text": ("data.label", 1.5, "data.label: got 1.5; allowed: text or a whole number"),
    "mixed list": ("data.features", [1, "a"], "data.features: got "),
    "value for options": ("model.options", 5, "model.options: got 5; allowed: a table"),
    "infinite option": (
        "model.options.a",
        [float("inf")],
        "model.options: got inf in it; allowed: text, finite numbers",
    ),
    "strength of a wrong type": ("clients.epsilon", "much", 'clients.epsilon: got "much"; allowed: a number > 0'),
    "strength below zero": ("clients.epsilon", -1, "clients.epsilon: got -1; allowed: a number > 0"),
    "strength in a list": ("clients.epsilon", [1, 0], "clients.epsilon[1]: got 0; allowed: a number > 0"),
    "empty strengths": ("clients.epsilon", [], "clients.epsilon: got []; allowed: a list of numbers > 0"),
    "misspelt distribution": (
        "clients.epsilon",
        {"unifrom": [2, 8]},
        "clients.epsilon: got { unifrom = [2, 8] }; did you mean 'uniform'? allowed: a number above 0 for all",
    ),
    "two distributions": (
        "clients.epsilon",
        {"uniform": [2, 8], "linear": [2, 8]},
        "clients.epsilon.linear: unknown key; keys here: unif",
    ),
    "falling range": (
        "clients.epsilon",
        {"uniform": [8, 2]},
        "clients.epsilon.uniform: got [8, 2]; allowed: [low, high] with low <=",
    ),
    "range of three": (
        "clients.epsilon",
        {"linear": [1, 2, 3]},
        "clients.epsilon.linear: got [1, 2, 3]; allowed: [first, last], both",
    ),
    "range below a hundredth": ("clients.epsilon", {"uniform": [0.001, 1]}, "clients.epsilon.uniform[0]: got 0.001; "),
    "layer's radius": ("method.range.radius", {"fc": -1}, "method.range.radius.fc: got -1; allowed: a number > 0"),
    "no layer": ("method.range.radius", {}, "method.range.radius: got {}; allowed: a table of numbers > 0"),
    "adjacency": (
        "clients.budget.adjacency",
        "person",
        "clients.budget.adjacency: unknown adjacency 'person'; allowed: coordinate",
    ),
    "adversary": (
        "clients.budget.adversary",
        "all",
        "clients.budget.adversary: unknown adversary 'all'; allowed: server, model-",
    ),
    "adversary of none": (
        "clients.budget.adversary",
        "shuffled(0)",
        "clients.budget.adversary: parties must be a whole",
    ),
    "adjacency of a wrong type": (
        "clients.budget.adjacency",
        5,
        "clients.budget.adjacency: got 5; allowed: one of coordinate, label, ",
    ),
    "a long value": ("name", "a b" * 100, 'name: got "a ba b'),
}


@pytest.mark.parametrize(("key", "value", "line"), SINGLE.values(), ids=list(SINGLE))
def test_a_wrong_key_is_one_line_with_what_was_given_and_what_is_allowed(key, value, line):
    found = problems(put(table(), key, value))
    assert [problem for problem in found if problem.startswith(line)], found
    if not line.startswith(("data.channels", "data.label", "data.features")):  # a known set takes none of these
        assert len(found) == 1, found


def test_long_values_are_cut_short():
    (found,) = changed(name="a b" * 100)
    assert "..." in found
    assert len(found) < 250


# --- keys among themselves --------------------------------------------------------------------------------------------

GAUSSIAN = {"name": "gaussian", "delta": 1e-5}
EQ4 = {**GAUSSIAN, "calibration": "eq4", "sampling": 0.1}
SAMPLING = {"name": "personalized", "sampling": 0.1, "range": {"kind": "fixed", "radius": 0.1}}
SILO = {"name": "silo-dp", "noise_multiplier": 1.0}
OWN = {"source": "wards.csv", "classes": ["a", "b"], "label": "y", "test": 0.2, "mean": [0], "std": [1]}

TOGETHER: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt data set": (
        {"data.source": "mnits"},
        "data.source: unknown data set 'mnits'; did you mean 'mnist'? known: digits, mnist",
    ),
    "folder without a slash": ({"data.source": "scans"}, "data.source: unknown data set 'scans'; known: "),
    "classes of a known set": (
        {"data.classes": ["0", "1"]},
        'data.classes: got ["0", "1"]; the known data set digits, whose classes and constants are published, takes',
    ),
    "own data without classes": (
        {"data": {**OWN, "classes": None}},
        "data.classes: missing; a table of your own needs it: the names of all classes (own data): a public list",
    ),
    "own data without constants": (
        {"data": {"source": "x.npz", "classes": ["a", "b"], "std": [1]}},
        "data.mean: missing; an .npz file of your own needs it: what is subtracted",
    ),
    "images without a test": (
        {"data": {**OWN, "source": "./x", "label": None, "test": None}},
        "data.test: missing; a f",
    ),
    "label of an archive": ({"data": {**OWN, "source": "x.npz", "test": None}}, 'data.label: got "y"; an .npz file of'),
    "arguments of a table": ({"data": {**OWN, "arguments": {"a": 1}}}, "data.arguments: got { a = 1 }; a table of you"),
    "classes of a function": (
        {"data": {"source": "a.b:c", "classes": ["a", "b"]}},
        'data.classes: got ["a", "b"]; a function that returns a',
    ),
    "one class": ({"data": {**OWN, "classes": ["a"]}}, 'data.classes: got ["a"]; allowed: at least two names'),
    "a class twice": ({"data": {**OWN, "classes": ["a", "a"]}}, 'data.classes: got ["a", "a"]; allowed: at least two'),
    "more deviations than means": (
        {"data": {**OWN, "std": [1, 2]}},
        "data.std: got 2 for 1 means; allowed: as many as",
    ),
    "more clients than examples": (
        {"split.clients": 1501},
        "split.clients: 1,501 clients with at least 1 examples each need more than the 1,500",
    ),
    "more clients than the limit": (
        {"data.train_limit": 19},
        "split.clients: 20 clients with at least 1 examples each",
    ),
    "a column of a set without columns": (
        {"split": {"kind": "column", "column": "ward", "clients": 20}},
        'split.column: got "ward", but digits has no columns; allowed: with a .csv table',
    ),
    "the label as the column": (
        {"data": OWN, "split": {"kind": "column", "column": "y", "clients": 20}},
        'split.column: got "y", which is the label; allowed: any other column',
    ),
    "a feature as the column": (
        {"data": {**OWN, "features": ["a", "ward"]}, "split": {"kind": "column", "column": "ward", "clients": 20}},
        'split.column: got "ward", which is one of data.features; allowed: a column that is no feature',
    ),
    "sizes too large": (
        {"split": {"kind": "sizes", "sizes": [1000, 501]}, "clients.epsilon": 1, "method.selection": {"kind": "all"}},
        "split.sizes: add up to 1,501; allowed: at most 1,500",
    ),
    "an empty client": (
        {"split": {"kind": "sizes", "sizes": [10, 0]}, "clients.epsilon": 1, "method.selection": {"kind": "all"}},
        "split.sizes[1]: got 0; allowed: at least split.at_least = 1",
    ),
    "too few shards": (
        {"split": {"kind": "shards", "clients": 9, "labels_per_client": 1}, "method.selection.k": 9},
        "split.labels_per_client: 9 clients with 1 labels each make 9 shards; allowed: 10 (one per class) to 1,500",
    ),
    "epochs and steps": ({"training.steps": 3}, "training.epochs: got 1 beside steps = 3; allowed: one of the two"),
    "nesterov": (
        {"training.optimizer.nesterov": True},
        "training.optimizer.nesterov: got true with momentum = 0; allow",
    ),
    "epsilons for others": ({"clients.epsilon": [1, 2]}, "clients.epsilon: got 2 numbers for 20 clients; allowed: one"),
    "limits for others": ({"clients.budget.limit": [1] * 21}, "clients.budget.limit: got 21 numbers for 20 clients"),
    "shares for others": (
        {"clients.epsilon": {"values": [1, 2], "shares": [1]}},
        "clients.epsilon.shares: got 1 for 2 values; allowed:",
    ),
    "shares short of one": (
        {"clients.epsilon": {"values": [1, 2], "shares": [0.5, 0.4]}},
        "clients.epsilon.shares: add up to 0.9; allowed:",
    ),
    "no epsilon": ({"clients.epsilon": None}, "clients.epsilon: missing; the mechanism two-point needs it"),
    "epsilon for nothing": (
        {"method.mechanism": {"name": "clip-only"}},
        "clients.epsilon: the mechanism clip-only takes none: leave it out",
    ),
    "epsilon beside sigma": (
        {"method.mechanism": {"name": "sign", "calibration": "sigma", "sigma": 1.0}},
        "clients.epsilon: the mechanism sign with calibration = sigma takes none",
    ),
    "no range": (
        {"method.range": None},
        "method.range: missing; the mechanism two-point needs a public range, such as kind =",
    ),
    "range for nothing": (
        {"method.mechanism": {"name": "none"}, "clients.epsilon": None},
        "method.range: the mechanism none clips nothing",
    ),
    "centre of a ball": (
        {"method.range.centre": 1.0, "method.mechanism": {"name": "laplace", "norm": "l1"}},
        "method.range.centre: got 1.0; laplace (l1) lies around zero",
    ),
    "layers of a ball": (
        {"method.range.radius": {"fc": 1.0}, "method.mechanism": {"name": "privunit"}},
        "method.range.radius: got { fc = 1.0 }; privunit has one radius for all layers: give one number",
    ),
    "layers of Gaussian noise": (
        {"method.range.radius": {"fc": 1.0}, "method.mechanism": GAUSSIAN},
        "method.range.radius: got { fc = 1.0 }; gaussian (box, analytic) has one radius",
    ),
    "analytic without delta": (
        {"method.mechanism": {"name": "gaussian"}},
        "method.mechanism.delta: missing; gaussian with calibration = analytic needs it: delta of the calibration",
    ),
    "analytic with sigma": (
        {"method.mechanism": {**GAUSSIAN, "sigma": 1.0}},
        "method.mechanism.sigma: got 1.0; gaussian with calibration = analytic takes none: leave it out",
    ),
    "analytic with a reading": (
        {"method.mechanism": {**GAUSSIAN, "reading": "literal"}},
        "method.mechanism.reading: got literal; gaussian with calibration = analytic takes none",
    ),
    "eq4 without sampling": (
        {"method.mechanism": {**GAUSSIAN, "calibration": "eq4", "rounds": 3}},
        "method.mechanism.sampling: missing; gaussian with calibration = eq4 needs it",
    ),
    "eq4 where nothing is sampled": (
        {"method.mechanism": {**EQ4, "rounds": 3}},
        "method.mechanism.sampling: got 0.1, but fedavg trains on all records",
    ),
    "eq4 of other rounds": (
        {"method": {**SAMPLING, "mechanism": {**EQ4, "rounds": 1}}},
        "method.mechanism.rounds: got 1, but rounds.count is 3",
    ),
    "eq4 of another sampling": (
        {"method": {**SAMPLING, "sampling": 0.5, "mechanism": {**EQ4, "rounds": 3}}},
        "method.mechanism.sampling: got 0.1, but method.sampling is 0.5",
    ),
    "eq4 in a ball": (
        {"method": {**SAMPLING, "mechanism": {**EQ4, "rounds": 3, "norm": "l2"}}},
        "method.mechanism.norm: got l2; allowed with calibration = eq4: box",
    ),
    "sigma without sigma": (
        {"method.mechanism": {"name": "gaussian", "calibration": "sigma"}, "clients.epsilon": None},
        "method.mechanism.sigma: missing; gaussian with calibration = sigma needs it",
    ),
    "response with delta": (
        {"method.mechanism": {"name": "sign", "delta": 0.1}},
        "method.mechanism.delta: got 0.1; sign with calibration = response takes none",
    ),
    "eq7 without delta": (
        {"method.mechanism": {"name": "sign", "calibration": "eq7"}},
        "method.mechanism.delta: missing; sign with calibr",
    ),
    "records in a ball": (
        {"method.mechanism": {"name": "laplace", "norm": "l1", "records": 2}},
        "method.mechanism.records: got 2; allowed with norm = l1: 1",
    ),
    "votes of others": (
        {"method.aggregation": {"kind": "sign", "step": 0.1}},
        "method.aggregation.kind: got sign with the mechanism two-point; allowed only with the mechanism sign",
    ),
    "no noise to weigh by": (
        {
            "method.aggregation.kind": "inverse-variance",
            "method.mechanism": {"name": "clip-only"},
            "clients.epsilon": None,
        },
        "method.aggregation.kind: got inverse-variance with the mechanism clip-only, whose reports carry no noise",
    ),
    "no epsilon to weigh by": (
        {"method.aggregation.kind": "budget", "method.mechanism": {"name": "clip-only"}, "clients.epsilon": None},
        "method.aggregation.kind: got budget without clients.epsilon, by which it weighs",
    ),
    "more than all": ({"method.selection.k": 21}, "method.selection.k: got 21; allowed: at most 20, all clients"),
    "quorum": ({"rounds.quorum": 11}, "rounds.quorum: got 11; allowed: at most 10, the clients asked in a round"),
    "nothing to stop by": (
        {"rounds.patience": 3, "data.validation": 0.0},
        "rounds.patience: got 3, but no examples are set aside to decide it: set data.validation above 0",
    ),
    "silos with an epsilon": (
        {"method": SILO, "training.epochs": None},
        "clients.epsilon: silo-dp takes none, its strength is method.target",
    ),
    "silos with epochs": (
        {"method": SILO, "clients.epsilon": None},
        "training.epochs: got 1; silo-dp draws its own batches (method.sampling_rate, method.steps) and takes",
    ),
    "silos without noise": (
        {"method": {"name": "silo-dp"}, "clients.epsilon": None, "training.epochs": None},
        "method.target: neither given of target = { epsilon = ..., delta = ... } and noise_multiplier; allowed",
    ),
    "silos with two noises": (
        {"method": {**SILO, "target": {"epsilon": 1, "delta": 0.1}}, "clients.epsilon": None, "training.epochs": None},
        "method.target: both given of target",
    ),
    "silos with a clip below the range": (
        {"method": {**SILO, "clip": 1e-310}, "clients.epsilon": None, "training.epochs": None},
        "method.clip: got 1e-310; allowed: a number from 1e-30 to 1e30",
    ),
    "silos of private size": (
        {"method": SILO, "clients.epsilon": None, "training.epochs": None, "data": OWN},
        "method.announced_size: missing; the number of your own examples is private",
    ),
    "silos weighed by noise": (
        {
            "method": {**SILO, "aggregation": {"kind": "inverse-variance"}},
            "clients.epsilon": None,
            "training.epochs": None,
        },
        "method.aggregation.kind: got inverse-variance with silo-dp",
    ),
}


@pytest.mark.parametrize(("changes", "line"), TOGETHER.values(), ids=list(TOGETHER))
def test_keys_that_do_not_fit_are_one_line_at_the_key_to_change(changes, line):
    data = table()
    for key, value in changes.items():
        put(data, key, value)
    found = problems(data)
    assert [problem for problem in found if problem.startswith(line)], found
    assert len(found) == 1, found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": OWN},
        {"data": {**OWN, "source": "scans/train", "test": "scans/test", "label": None, "channels": 1}},
        {"data": {"source": "hospital.data:load", "arguments": {"year": 2024}}},
        {"data": {"source": "x.npz", "classes": ["a", "b"], "mean": [0, 1], "std": [1, 2]}},
        {"rounds.patience": 3},
        {"rounds.target_accuracy": 0.9, "rounds.stop_on": "test", "data.validation": 0.0},
        {"split.clients": 1500},
        {"split": {"kind": "sizes", "sizes": [9] * 20}},
        {"method.aggregation.kind": "inverse-variance"},
        {"method.aggregation.kind": "budget"},
        {"rounds.quorum": 10},
        {"method": SILO, "clients.epsilon": None, "training.epochs": None},
    ],
    ids=lambda changes: " ".join(changes) or "as it is",
)
def test_what_fits_is_not_refused(changes):
    data = table()
    for key, value in changes.items():
        put(data, key, value)
    Recipe.from_dict({key: value for key, value in data.items() if value is not None} | {"data": without_none(data)})


def without_none(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data["data"].items() if value is not None}


# --- all at once ------------------------------------------------------------------------------------------------------


def test_problems_of_single_keys_and_of_several_come_together():
    found = changed(
        seed=-1,
        data__source="mnits",
        split__clients="many",
        training__steps=3,
        clients__budget__basis="hoped",
        method__mechanism={"name": "laplace", "norm": "l1", "records": 5},
        rounds__patience=3,
        data__validation=0.0,
    )
    assert sorted(problem.partition(":")[0] for problem in found) == [
        "clients.budget.basis",
        "data.source",
        "method.mechanism.records",
        "rounds.patience",
        "seed",
        "split.clients",
        "training.epochs",
    ]


def test_nothing_is_concluded_from_a_key_that_is_wrong_itself():
    """A quorum above the clients asked is no news while it is not known how many are asked."""
    assert [p.partition(":")[0] for p in changed(rounds__quorum=15, method__selection__k="some")] == [
        "method.selection.k"
    ]
    assert [p.partition(":")[0] for p in changed(clients__epsilon=[1, 2], split__kind="idd")] == ["split.kind"]
    assert [p.partition(":")[0] for p in changed(clients__epsilon=None, method__mechanism={"name": "x"})] == [
        "method.mechanism.name"
    ]


def test_a_superfluous_key_hides_nothing_else():
    found = changed(split__beta=0.5, rounds__quorum=11, method__mechanism__zzz=1, clients__epsilon=None)
    assert [p.partition(":")[0] for p in found] == [
        "split.beta",
        "method.mechanism.zzz",
        "clients.epsilon",
        "rounds.quorum",
    ]


def test_an_empty_recipe_says_all_that_it_needs():
    assert [problem.partition(":")[0] for problem in problems({})] == ["name", "data", "split", "model", "method"]


def test_the_error_is_one_text_with_a_line_for_each_problem():
    with pytest.raises(RecipeInvalid) as caught:
        Recipe.from_dict({**table(), "seed": -1, "name": "?"})
    text = str(caught.value).splitlines()
    assert text[0] == "the recipe has 2 problems:"
    assert len(text) == 3
    assert isinstance(caught.value, InvalidInput)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.problems) == (str(caught.value), caught.value.problems)


@pytest.mark.parametrize("given", [5, None, ["a"], {1: 2}], ids=str)
def test_what_is_no_table_is_refused(given):
    with pytest.raises(InvalidInput, match="named keys"):
        Recipe.from_dict(given)


def test_a_key_called_self_is_only_unknown():
    assert problems({**table(), "self": 1})[0].startswith("self: unknown key")


# --- TOML -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('name = "x"\nseed = = 3', "line 2, column 8"),
        ('name = "x"\nname = "y"\nseed = 1', "line 2, column 11"),
        ("name = [1,", "end of document"),
    ],
)
def test_syntax_errors_name_line_column_and_file(tmp_path, text, where):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(RecipeInvalid) as caught:
        Recipe.load(tmp_path / "mine.toml")
    assert where in caught.value.problems[0]
    assert str(tmp_path / "mine.toml") in str(caught.value)
    with pytest.raises(RecipeInvalid, match="1 problem"):
        Recipe.from_toml(text)


def test_problems_of_a_file_name_the_file(tmp_path):
    (tmp_path / "mine.toml").write_text(VALID.replace("count = 3", "count = 0"))
    with pytest.raises(RecipeInvalid) as caught:
        Recipe.load(tmp_path / "mine.toml")
    assert str(caught.value).splitlines()[0] == f"{tmp_path / 'mine.toml'} has 1 problem:"


# --- anything at all --------------------------------------------------------------------------------------------------

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
PLACES = sorted(Recipe.from_toml(VALID).settings())


@pytest.mark.process
@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(PLACES) | st.sampled_from(["data", "split", "method", "zzz"]), junk, max_size=4))
def test_whatever_is_put_into_a_recipe_is_accepted_or_refused_in_plain_words(changes):
    data = copy.deepcopy(table())
    for key, value in sorted(changes.items(), key=lambda change: -change[0].count(".")):
        put(data, key, value)
    try:
        made = Recipe.from_dict(data)
    except RecipeInvalid as error:
        for problem in error.problems:
            assert not re.search(r"Input should|pydantic|https?://|Value error|tuple\[|dict\[|constrained", problem)
            assert problem.partition(":")[0]
        return
    assert Recipe.from_toml(made.to_toml()) == made
    assert json.dumps(made.to_dict(), allow_nan=False)
