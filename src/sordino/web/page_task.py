"""From a recipe to its *task*: one JSON object that a page can carry out, as docs/web-protocol.md describes it.

Everything in it is public and computed here once: layers, training, the whole numbers of the mechanism, what leaves in
which round and what a ledger counts for it. A recipe that pages cannot carry out is refused with the part named.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import resources
from itertools import accumulate, groupby
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sordino.client.invitation import CommonTerms
from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.columns import NumberColumn
from sordino.learning.examples import Dataset
from sordino.learning.losses import CrossEntropy
from sordino.learning.models import MaskedDropout, Network
from sordino.learning.private_sgd import PrivateTraining
from sordino.learning.tasks import CLASSES_ALONE
from sordino.mechanisms import Box, Mechanism, NoPrivacy, mechanism_named
from sordino.methods.aggregation import NoisySamples
from sordino.methods.lian_webfed import COUNTED, Counts
from sordino.methods.private_head import NoisySum, PrivateHead
from sordino.methods.silo_dp import RECORDS
from sordino.methods.upload import Upload
from sordino.parts import registry
from sordino.parts.shipped import SHIPPED
from sordino.privacy import accountant, history
from sordino.privacy.accountant import Account
from sordino.privacy.guarantee import SERVER, Adjacency, Budget, Claim, Guarantee, Infinite, Release, kind
from sordino.privacy.history import RoundReleases
from sordino.privacy.statement import Statement
from sordino.privacy.terms import plain
from sordino.randomness import Keystream, threshold
from sordino.recipe import Recipe
from sordino.report.statement import sentences, to_text
from sordino.runs.federation import Federation
from sordino.wire.codec import JsonObject, canonical
from sordino.wire.signing import Author

PROTOCOL = 2
SHARES = (1.0, 0.5, 0.25, 0.125)  #: of the recipe's epsilon, that a page of a silo may choose instead
LARGEST_MODEL = 2**22  #: parameters
MOST_BITS = 48  #: of the modulus of sums: pages compute in float64


# --- what pages cannot do ---------------------------------------------------------------------------------------------


def check(recipe: Recipe) -> None:
    """Refuse a recipe that pages cannot carry out; every part that stands in the way is named."""
    found = [f"{part}: {why}" for part, why in _obstacles(recipe)]
    if found:
        raise InvalidInput(
            f"{recipe.name} cannot run in web pages. " + "; ".join(found) + ". Change these parts (sordino serve "
            "RECIPE --set KEY=VALUE), or simulate it: sordino run"
        )


def _obstacles(recipe: Recipe) -> Iterator[tuple[str, str]]:
    method = recipe.method
    if not method.in_pages:
        known = [name for name, table in registry.tables("method").items() if getattr(table, "in_pages", False)]
        yield f'method.name = "{method.name}"', f"pages know {', '.join(known)}"
        return
    channel, mechanism = method.channel, getattr(method, "mechanism", NoPrivacy.Spec())
    if not channel.in_pages:
        yield f'method.channel.kind = "{channel.kind}"', "pages send their reports straight to the server (direct)"
    known = [name for name in SHIPPED["mechanism"] if mechanism_named(name).in_pages]
    if mechanism.name not in known:
        yield f'method.mechanism.name = "{mechanism.name}"', f"pages know {', '.join(known)}"
    elif getattr(mechanism, "norm", "box") != "box":
        yield f'method.mechanism.norm = "{mechanism.norm}"', "pages clip each value by itself (box)"
    if not method.aggregation.in_pages:
        yield (
            f'method.aggregation.kind = "{method.aggregation.kind}"',
            "the number of a person's records does not leave a page in the clear (mean, or webfed's noisy-samples)",
        )
    yield from method.page_obstacles()
    if recipe.evaluation.private is not None:
        yield "evaluation.private", "pages set no records aside: leave it out, and score the model on a test set"
    if recipe.attacks is not None:
        yield "attacks", "only simulations are attacked: leave it out"
    if recipe.model.is_own:
        yield f'model.name = "{recipe.model.name}"', f"pages know {', '.join(models.names())}"
    if (task := recipe.data.task) is not None and task.kind not in CLASSES_ALONE:
        yield (
            f"data.{'labels' if recipe.data.labels else 'target'}",
            "pages learn one of several classes (data.classes)",
        )
    if recipe.model.loss is not None and recipe.model.loss != CrossEntropy():
        yield f'model.loss.kind = "{recipe.model.loss.kind}"', "pages learn by the model's own loss: leave it out"
    if recipe.training.augmentation is not None:
        yield "training.augmentation", "pages train on records as they are"


_LAYERS: dict[type[nn.Module], str] = {nn.Flatten: "flatten", nn.ReLU: "relu", nn.ELU: "elu", nn.Tanh: "tanh"}
_STRANGE = {
    MaskedDropout: 'set the model\'s option "dropout" to 0',
    nn.BatchNorm1d: "its running statistics are a release of their own: take a model without batch norm",
    nn.BatchNorm2d: "its running statistics are a release of their own: take a model without batch norm",
    nn.GroupNorm: "take a model without norms",
}


def layers_of(name: str, model: nn.Module) -> list[JsonObject]:
    """The layers of a network in the words of the protocol; what pages do not know is refused."""
    if not isinstance(model, Network):
        raise InvalidInput(f'model.name = "{name}" is no network of layers in a row: pages cannot build it')
    return [_layer(name, own, layer) for own, layer in model.named_children()]


def _layer(model: str, name: str, layer: nn.Module) -> JsonObject:
    kind = _LAYERS.get(type(layer))
    match layer:
        case _ if kind is not None:
            return {"kind": kind, "name": name}
        case nn.Linear():
            return {"kind": "dense", "name": name, "inputs": layer.in_features, "outputs": layer.out_features}
        case nn.Conv2d():
            sizes = {"inputs": layer.in_channels, "outputs": layer.out_channels}
            return {
                "kind": "conv", "name": name, **sizes, "kernel": layer.kernel_size[0], "padding": int(layer.padding[0])
            }  # fmt: skip
        case nn.MaxPool2d():
            return {"kind": "max-pool", "name": name, "size": cast(int, layer.kernel_size)}
    why = _STRANGE.get(type(layer), "pages do not know it")
    raise InvalidInput(
        f'model.name = "{model}" has the layer {name} ({type(layer).__name__}), which pages cannot carry out: {why}'
    )


# --- mechanisms -------------------------------------------------------------------------------------------------------


def mechanism_of(mechanism: Mechanism, upload: Upload, sizes: Sequence[int], *, adaptive: bool = False) -> JsonObject:
    """The integers that define a mechanism. `sizes` are the sizes of the layers that its box may tell apart."""
    if not mechanism.in_pages:
        raise InvalidInput(f"the mechanism {mechanism.name} has no form in pages")
    settings = mechanism.page_settings(upload.values)
    if not mechanism.bounded:
        return settings
    return settings | {"domain": {"kind": "plan"} if adaptive else _domain(mechanism.domain, sizes)}


def _domain(domain: object, sizes: Sequence[int]) -> JsonObject:
    if not isinstance(domain, Box):
        raise InvalidInput(f"pages clip each value by itself, and not to a {type(domain).__name__}")

    def told(numbers: NDArray[np.float32]) -> float | list[float]:
        return float(numbers[0]) if numbers.size == 1 else [float(numbers[first]) for first in _starts(sizes)]

    return {"kind": "box", "centre": told(domain.centre), "radius": told(domain.radius)}


# --- what leaves ------------------------------------------------------------------------------------------------------


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinite"


def _released(release: Release, delta: float) -> JsonObject:
    return {
        "what": release.what,
        "claimed": None if release.claimed is None else _claimed(release.claimed),
        "guarantees": [_guaranteed(guarantee, delta) for guarantee in release.guarantees],
    }


def _claimed(claim: Claim) -> JsonObject:
    return asdict(claim) | {"adjacency": plain(claim.adjacency), "adversary": plain(claim.adversary)}


def _guaranteed(guarantee: Guarantee, delta: float) -> JsonObject:
    loss = guarantee.loss
    epsilon = math.inf if isinstance(loss, Infinite) else accountant.epsilon(loss, delta, adjacency=guarantee.adjacency)
    return {
        "adversary": plain(guarantee.adversary),
        "adjacency": plain(guarantee.adjacency),
        "basis": guarantee.basis,
        "loss": {"type": kind(loss), **asdict(loss)},
        "epsilon": _finite(epsilon),
        "delta": delta,
    }


def _terms(budget: Budget) -> JsonObject:
    return {
        "basis": budget.basis,
        "adjacency": plain(budget.adjacency),
        "adversary": plain(budget.adversary),
        "delta": budget.delta,
    }


def spending(budget: Budget, rounds: Sequence[Sequence[Release]]) -> JsonObject:
    """What a ledger with this budget counts after reports in 1, 2, .. of these rounds."""
    account, totals = Account.opening(budget), list[float | str]()
    for releases in rounds:
        for release in releases:
            account = account.after(release)
        totals.append(_finite(account.spent))
    return _terms(budget) | {"epsilon": totals}


# --- the whole --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PageTask:
    """What a page is asked to agree to: `body` is the JSON, `digest` names it."""

    recipe: Recipe
    content: JsonObject
    schedule: Statement  #: what the whole schedule would tell of one participant
    largest_report: int  #: bytes of the body of the largest report

    @cached_property
    def body(self) -> bytes:
        """The bytes that are served."""
        return canonical(self.content)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes, in hexadecimal."""
        return hashlib.sha256(self.body).hexdigest()


def compile_task(parts: Federation, federation: str, author: Author) -> PageTask:
    """The task of a recipe whose parts are wired, for a federation of this name and coordinator."""
    check(parts.recipe)
    return _Compiler(parts, federation, author).task()


class _Compiler:
    def __init__(self, federation: Federation, name: str, author: Author) -> None:
        self._federation, self._recipe, self._name, self._author = federation, federation.recipe, name, author
        self._method, self._upload = federation.method, federation.upload
        start = self._method.init()
        self._plans = [
            self._method.plan(replace(start, round=round), name) for round in range(self._recipe.rounds.count)
        ]
        released = [self._method.releases(plan) for plan in self._plans]
        self._classes = range(len(self._upload.strengths))
        self._releases = [[tuple(own[c]) for own in released] for c in self._classes]  # class -> round -> releases
        budgets = self._recipe.budgets()
        self._budget = budgets[0] if budgets and all(budget == budgets[0] for budget in budgets) else None

    def task(self) -> PageTask:
        recipe, layout, dataset = self._recipe, self._federation.layout, self._federation.dataset
        model, budget, plan = self._model, self._budget, self._plans[-1]
        if layout.size > LARGEST_MODEL:
            raise InvalidInput(
                f'model.name = "{recipe.model.name}" has {layout.size:,} parameters here; pages take up to '
                f"{LARGEST_MODEL:,}"
            )
        if dataset.task.kind not in CLASSES_ALONE:  # as a function that makes the data says
            raise InvalidInput(f"pages learn one of several classes, and {recipe.data.source} is for {dataset.task}")
        columns = zip(layout.names, layout.shapes, _starts(layout.sizes), layout.sizes, strict=True)
        parameters = [
            {"name": name, "shape": list(shape), "first": first, "size": size} for name, shape, first, size in columns
        ]
        statement = self._statement()
        content = {
            "protocol": PROTOCOL,
            "name": recipe.name,
            "federation": self._name,
            "coordinator": self._author.first.hex(),
            "terms": CommonTerms.of(recipe, self._name, dataset, self._author).digest.hex(),
            "recipe_digest": recipe.fingerprint,
            "title": recipe.title or recipe.name,
            "summary": recipe.described,
            "paper": recipe.paper,
            "method": recipe.method.name,
            "clients": self._federation.clients,
            "rounds": {
                "count": recipe.rounds.count, "quorum": recipe.rounds.quorum, "deadline": recipe.rounds.deadline or None
            },
            "input": _input(dataset),
            "classes": list(dataset.classes),
            "model": {
                "name": recipe.model.name, "layers": layers_of(recipe.model.name, model), "parameters": parameters,
                "size": layout.size,
            },
            "loss": _loss(recipe.model.name),
            "training": self._training(),
            "upload": {
                "what": self._uploaded,
                "values": layout.size,
                "layers": [{"name": layer.name, "first": layer.start, "size": layer.size} for layer in layout.layers],
                "samples": self._samples(),
                "norm": self._upload.norm,
            },
            "strengths": [self._strength(c) for c in self._classes],
            "plan": {
                "step": "report", "settings": dict(plan.settings),
                "arrays": {name: list(array.shape) for name, array in plan.arrays.items()},
                "bare": sum(not plan.arrays for plan in self._plans),
            },
            "budget": None if budget is None else {"limit": budget.limit, **_terms(budget)},
            "choices": self._choices(),
            "expected": _measured(recipe).get("expected"),
            "statement": {
                "title": statement.title, "text": to_text(statement), "sentences": list(sentences(statement))
            },
        }  # fmt: skip
        return PageTask(recipe, content, statement, max(map(self._report_size, self._classes)))

    @property
    def _model(self) -> nn.Module:
        """The network that a page builds: a linear head is trained on features, whatever is whitened for scoring."""
        method = self._method
        return self._federation.model if isinstance(method, PrivateHead) else method.graded or self._federation.model

    # --- training

    def _training(self) -> JsonObject:
        if isinstance(self._method, PrivateHead):
            return _sums_training(self._method)
        training = self._method.training
        given = self._recipe.training
        optimiser = given.optimizer.model_dump()
        optimiser["decayed"] = list(optimiser.get("decayed") or ())
        if isinstance(training, PrivateTraining):
            return {
                "kind": "private", "optimiser": optimiser, "clip": training.clip, "noise": training.noise_multiplier,
                "rate": training.sampling_rate, "threshold": threshold(training.sampling_rate),
                "expected_batch": training.expected_batch, "steps": training.steps,
                "resolution": training.resolution,
            }  # fmt: skip
        return {
            "kind": "plain", "optimiser": optimiser, "epochs": training.epochs, "steps": training.steps,
            "batch": training.batch_size or 0, "shuffle": training.shuffle, "drop_last": training.drop_last,
            "records": self._recipe.method.page_records,
        }  # fmt: skip

    # --- upload

    @property
    def _uploaded(self) -> str:
        if isinstance(self._method, PrivateHead):
            return "sums"
        return "update" if self._recipe.method.sends_updates else "weights"

    def _samples(self) -> JsonObject | None:
        given = self._recipe.method.aggregation
        if not isinstance(given, NoisySamples):
            return None
        counts = Counts(given.epsilon, given.limit)
        one = Upload(lambda _: counts.mechanism, None, 1, clients=1, what=COUNTED)
        mechanism = mechanism_of(counts.mechanism, one, [1])
        return {"kind": "noisy", "limit": counts.limit, "what": COUNTED, "mechanism": mechanism}

    def _strength(self, c: int) -> JsonObject:
        upload, by_round = self._upload, self._releases[c]
        adaptive = bool(getattr(getattr(self._recipe.method, "range", None), "adapts", False))
        sizes = [layer.size for layer in self._federation.layout.layers]
        budgets = [*([] if self._budget is None else [self._budget]), *self._other_budgets(by_round[0])]
        distinct: dict[str, Budget] = {}
        for budget in budgets:  # the first of equal terms: an account depends on the limit too
            distinct.setdefault(json.dumps(_terms(budget)), budget)
        return {
            "clients": [int(k) for k in np.flatnonzero(upload.class_of == c)],
            "epsilon": upload.strengths[c],
            "mechanism": _noisy_sums(self._method, c, self._recipe.rounds.count)
            if isinstance(self._method, PrivateHead)
            else mechanism_of(upload.mechanisms[c], upload, sizes, adaptive=adaptive),
            "releases": list(_grouped(by_round, self._federation.delta)),
            "spending": [spending(budget, by_round) for budget in distinct.values()],
        }

    def _report_size(self, c: int) -> int:
        """Bytes of the longest report of zeros: all reports of one mechanism have the same length."""
        client = int(np.flatnonzero(self._upload.class_of == c)[0])
        uploads = {id(own): own for own in map(self._method.upload, self._plans)}.values()

        def size(upload: Upload) -> int:
            zeros = np.zeros((1, upload.values), np.float32)
            return len(upload.send([client], zeros, lambda _: Keystream.fresh(), [1]).bodies[0])

        return max(map(size, uploads))

    # --- budgets

    def _other_budgets(self, releases: Sequence[Release]) -> list[Budget]:
        """Other terms in which something can be said about this schedule."""
        spoken = {g.adjacency for r in releases for g in r.guarantees if g.adversary == SERVER}
        delta = self._federation.delta
        proven = [Budget(8.0, delta, "proven", adjacency) for adjacency in Adjacency if adjacency in spoken]
        claims = [r.claimed for r in releases if r.claimed is not None]
        return proven + [Budget(8.0, claim.delta, "claimed", claim.adjacency) for claim in claims[:1]]

    def _choices(self) -> list[JsonObject]:
        """For silos: more noise than the recipe asks for, which a page may take; its reports show that it did.

        None without a norm: one participant with eight times the noise would drown everybody else.
        """
        training, budget, values = self._method.training, self._budget, self._upload.values
        if self._upload.norm is None or not isinstance(training, PrivateTraining):
            return []
        if budget is None or not budget.delta or budget.basis != "proven":
            return []
        whole = spending(budget, self._releases[0])["epsilon"][-1]
        if isinstance(whole, str):
            return []
        known, found = _measured_choices(self._recipe), []
        for share in SHARES:
            limit, rounds = share * whole, self._recipe.rounds.count
            own = training if share == 1 else training.with_noise_for(limit, budget.delta, rounds, values)
            both = tuple(own.guarantee(values, adjacency) for adjacency in RECORDS)
            released = [[replace(first, guarantees=both), *others] for first, *others in self._releases[0]]
            spent = spending(replace(budget, limit=share * budget.limit), released)
            accuracy, alone = known.get(own.noise_multiplier, (None, None))
            found.append({"noise": own.noise_multiplier, "spending": spent, "accuracy": accuracy, "alone": alone})
        return found

    # --- the statement

    def _statement(self) -> Statement:
        """What all rounds would tell of one participant; of each strength, where they differ."""
        each = tuple((c,) for c in self._classes)
        spent = [
            RoundReleases(round, own, each) for round, own in enumerate(zip(*self._releases, strict=True), start=1)
        ]
        title = f"What {self._recipe.name} would learn of you"
        return history.statement(spent, len(self._classes), delta=self._federation.delta, title=title)


# --- sums on public features (private-head) ---------------------------------------------------------------------------


def _sums_training(method: PrivateHead) -> JsonObject:
    """What a record becomes before it is summed."""
    spec, form = method.spec, method.form
    return {
        "kind": "sums",
        "extractor": spec.extractor.model_dump(include={"kind", "scales", "angles", "orders"}),
        "maps": form.maps, "cells": form.cells, "roots": form.roots, "groups": form.groups,
        "bias": spec.bias, "clip": spec.clip,
    }  # fmt: skip


def _noisy_sums(method: PrivateHead, c: int, rounds: int) -> JsonObject:
    """The sums that clients of a class send: how long a record's vectors are at most, and the noise of each stage."""
    stages, scale = method.stages, method.scales[c]
    firsts = [1, 2][: len(stages)]
    return {
        "name": "noisy-sums",
        "limits": asdict(method.limits(c)),
        "stages": [
            _stage(stage, scale, [first, rounds if stage is stages[-1] else first])
            for stage, first in zip(stages, firsts, strict=True)
        ],
    }


def _stage(stage: NoisySum, scale: float, rounds: list[int]) -> JsonObject:
    if stage.bits > MOST_BITS:
        raise InvalidInput(
            f"{stage.what} would be sent modulo 2^{stage.bits}, and pages take up to 2^{MOST_BITS}: lower method.bits, "
            "method.announced_size or the number of clients"
        )
    return {
        "rounds": rounds, "what": stage.what, "values": stage.values, "noise": stage.noise.bits,
        "modulus": stage.bits, "sensitivity": stage.sensitivity * scale,
    }  # fmt: skip


def _loss(model: str) -> str:
    return "one-versus-rest" if models.loss_for(model) is models.one_versus_rest else "cross-entropy"


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each of several consecutive pieces begins."""
    return list(accumulate(sizes, initial=0))[:-1]


def _input(dataset: Dataset) -> JsonObject:
    constants = dataset.normalisation
    kind = "image" if len(dataset.shape) == 3 else "features"
    told = {"shape": list(dataset.shape), "mean": list(constants.mean), "std": list(constants.std), "kind": kind}
    return told | ({"largest": float(dataset.test.x.max())} if kind == "image" else {"columns": _columns(dataset)})


def _columns(dataset: Dataset) -> list[JsonObject] | None:
    """What the values of a table's record are called, and the public ends of their scales; None without names."""
    names = dataset.feature_names
    if len(names) != dataset.shape[0]:
        return None
    scales = {name: (rule.low, rule.high) for name, rule in dataset.rules.items() if isinstance(rule, NumberColumn)}
    ends = (scales.get(name, (None, None)) for name in names)
    return [{"name": name, "low": low, "high": high} for name, (low, high) in zip(names, ends, strict=True)]


def _grouped(by_round: Sequence[Sequence[Release]], delta: float) -> Iterator[JsonObject]:
    """Releases with the rounds in which they are made."""
    found: dict[str, tuple[JsonObject, list[int]]] = {}
    for number, releases in enumerate(by_round, 1):
        for release in releases:
            key = repr(replace(release, id="-"))
            if key not in found:
                found[key] = (_released(release, delta), [])
            found[key][1].append(number)
    for told, rounds in found.values():
        for _, run in groupby(enumerate(rounds), lambda place: place[1] - place[0]):  # rounds one after the other
            numbers = [number for _, number in run]
            yield {"rounds": [numbers[0], numbers[-1]], **told}


Measured = tuple[float | None, float | None]  #: accuracy where everybody chooses a noise, and where one alone does


def _measured_choices(recipe: Recipe) -> dict[float, Measured]:
    """Accuracies that were measured in simulations of a shipped recipe, by noise multiplier; empty for all others."""
    choices = _measured(recipe).get("choices", {}).values()
    return {choice["noise"]: (choice["accuracy"], choice.get("alone")) for choice in choices}


def _measured(recipe: Recipe) -> JsonObject:
    """What was measured in simulations of a shipped recipe (`python -m benchmarks.pages`); empty for all others."""
    known: JsonObject = json.loads(resources.files("sordino.web").joinpath("measured.json").read_text())
    if recipe.name not in known or Recipe.load(recipe.name).fingerprint != recipe.fingerprint:
        return {}
    return cast(JsonObject, known[recipe.name])


__all__ = ["PROTOCOL", "PageTask", "check", "compile_task", "layers_of", "mechanism_of", "spending"]
