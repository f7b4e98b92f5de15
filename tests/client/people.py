"""Small federations of real clients on digits: folders, invitations, plans, and a fleet that asks clients directly."""

import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino import channels
from sordino.client.client import Client
from sordino.client.invitation import CommonTerms, Invitation
from sordino.client.refusal import Reason, Refused
from sordino.client.settings import Settings
from sordino.fleets.interface import Fleet, Reply
from sordino.fleets.signatures import SignedFleet
from sordino.learning import datasets
from sordino.learning.stacked_model import LOOP, Execution
from sordino.methods.interface import State
from sordino.privacy.history import ranges
from sordino.randomness import Keystream
from sordino.recipe import Recipe
from sordino.runs.coordinator import Coordinator, Rules
from sordino.runs.federation import Federation, wire
from sordino.wire.messages import Answer, Kind, Plan
from sordino.wire.signing import Author, Envelope, SigningKey
from tests.engine import tiny

NAME = "digits-demo"
_PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEY = SigningKey(_PRIVATE, Author(_PRIVATE.public_key().public_bytes_raw()))  #: of the coordinator, in every process

read_once = functools.cache(datasets.load)  #: in the place of `datasets.load`, for tests that open many clients

TWO_POINT: dict[str, Any] = {
    **tiny.TWO_POINT,
    "data.train_limit": 60,
    "split": {"kind": "iid", "clients": 3},
    "rounds.count": 3,
}
COST = 650 * 1.0  #: epsilon of one upload against the server: one bit of epsilon 1 for each of 650 values


def recipe(changes: dict[str, Any] | None = None) -> Recipe:
    return tiny.recipe({**TWO_POINT, **(changes or {})})


def settings(rows: str = "0-19", limit: float = 1e6, **tables: Any) -> Settings:
    own = {"source": "digits", "rows": rows}
    known = {name: KEY.author.first.hex() for name in tables.get("federations", ()) if "*" not in name}
    budget, keep = {"limit": limit, **tables.pop("budget", {})}, tables.pop("keep", {})
    return Settings.of({"data": own, "budget": budget, "keep": keep, "consents": tables, "coordinators": known})


def client(folder: Path, given: Settings | None = None) -> Client:
    return Client.create(folder, given or settings())


@contextmanager
def refused(reason: Reason) -> Iterator[pytest.ExceptionInfo[Refused]]:
    """What a client refuses inside, for this reason."""
    with pytest.raises(Refused) as caught:
        yield caught
    assert caught.value.reason is reason


def invitation(given: Recipe | None = None, number: int = 0, name: str = NAME) -> Invitation:
    return terms(given, name).invitation(number, KEY)


def terms(given: Recipe | None = None, name: str = NAME) -> CommonTerms:
    return CommonTerms.of(given or recipe(), name, read_once("digits"), KEY.author)


def signed(plan: Plan, step: str = "report", key: SigningKey = KEY, given: Recipe | None = None) -> bytes:
    """A plan as its coordinator sends it to everybody who agreed to a recipe."""
    return key.envelope(step, plan, terms(given, plan.federation).digest, range(100), plan.encode())


def unsigned(message: bytes) -> bytes:
    """What lies in an envelope."""
    return Envelope.decode(message).message


def plans(given: Recipe | None = None, name: str = NAME) -> Callable[[int], Plan]:
    """The plans that an honest server would send, the model never changing."""
    method = wire(given or recipe()).method

    def of(round: int) -> Plan:
        if round == 0:
            found = method.preparation(name)
            assert found is not None
            return found
        start = method.init()
        return method.plan(State(round - 1, start.parameters, start.arrays), name)

    return of


def joined(folder: Path, given: Recipe | None = None, own: Settings | None = None) -> Client:
    made = client(folder, own)
    made.join(invitation(given).encode())
    return made


def body(answer: bytes) -> bytes:
    """The body of a report; anything else fails."""
    found = Answer.decode(answer)
    assert found.kind is Kind.REPORT
    return found.body


def seeded(seed: int, number: int) -> Callable[[int], Any]:
    """A simulation's randomness for one client."""
    return lambda round: lambda clients: Keystream.simulation(seed, [number], round)


class DirectFleet(Fleet):
    """Clients of this process, asked one after the other."""

    def __init__(self, clients: Mapping[int, Client]) -> None:
        self.clients, self.reasons = clients, dict[int, str]()

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: Any) -> Generator[Reply]:
        for number, message in messages.items():
            reply = self.clients[number].reply(step, message)
            if reply.reason:
                self.reasons[number] = reply.reason
            yield Reply(number, reply.payload or None, reply.reason, reply.receipt)


def members(folder: Path, federation: Federation, injected: bool = False, **tables: Any) -> dict[int, Client]:
    """One client for each part of a simulation's data, all of them joined."""
    found = {}
    for number, part in enumerate(federation.parts):
        place = folder / str(number)
        client(place, settings(ranges(part), **tables)).close()
        randomness = seeded(federation.recipe.seed, number) if injected else None
        found[number] = Client.open(place, randomness=randomness, execution=Execution() if injected else LOOP)
        found[number].join(invitation(federation.recipe, number).encode())
    return found


def coordinator(federation: Federation, fleet: Any, quorum: int = 1) -> Coordinator:
    channel = channels.build(federation.recipe, federation.method)
    signing = SignedFleet(fleet, KEY, terms(federation.recipe).digest)
    return Coordinator(federation.method, signing, channel, NAME, Rules(quorum))


#: every paper's method, and DP-SGD in silos, on a few digits
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {
        "method": {
            "name": "fedavg",
            "mechanism": {"name": "two-point"},
            "range": {"kind": "fixed", "radius": 0.1},
        },
        "clients.epsilon": 1.0,
    },
    "ldp-fl": {
        "method": {"name": "ldp-fl", "range": {"kind": "adaptive"}},
        "clients.epsilon": 1.0,
    },
    "ldp-fed": {
        "method": {"name": "ldp-fed", "range": {"kind": "fixed", "radius": 0.1}},
        "model": {"name": "mlp", "options": {"hidden": [4]}},
        "clients.epsilon": 20.0,
        "rounds.count": 3,
    },
    "webfed": {
        "method": {
            "name": "webfed",
            "range": {"kind": "fixed", "radius": 1.0},
            "mechanism": {"name": "laplace", "norm": "box"},
            "aggregation": {"kind": "noisy-samples", "epsilon": 1.0, "limit": 100},
        },
        "clients.epsilon": 1.0,
    },
    "personalized": {
        "method": {
            "name": "personalized",
            "sends": "signs",
            "portion": 5,
            "range": {"kind": "fixed", "radius": 1.0},
            "mechanism": {"name": "sign", "calibration": "response"},
        },
        "model": {"name": "logistic-ovr"},
        "clients.epsilon": [1.0, 1.0, 2.0],
    },
    "ldpfl": {
        "method": {"name": "ldpfl", "extractor": {"kind": "oriented", "cells": 2}},
        "model": {"name": "ldpfl-dense", "options": {"hidden": [8]}},
        "clients.epsilon": 0.5,
    },
    "ldpfl-privunit": {
        "method": {
            "name": "ldpfl",
            "extractor": {"kind": "oriented", "cells": 2},
            "mechanism": {"name": "record-privunit"},
        },
        "clients.epsilon": 4.0,
    },
    "silo-dp": {
        "method": {
            "name": "silo-dp",
            "clip": 1.0,
            "sampling_rate": 0.5,
            "steps": 2,
            "noise_multiplier": 1.0,
            "announced_size": 20,
        },
        "clients.epsilon": None,
        "training": {"optimizer": {"name": "sgd", "lr": 1.0}},
    },
    "private-head": {
        "method": {
            "name": "private-head",
            "extractor": {"kind": "scattering", "scales": 1, "angles": 2},
            "channel": {"kind": "direct"},
            "announced_size": 20,
        },
        "training": {},
        "clients.epsilon": 4.0,
    },
    "local-only": {"method": {"name": "local-only"}, "clients.epsilon": None},
}


def adjacency(name: str) -> str:
    """What the releases of a method are proven about."""
    of_records = {"silo-dp", "hybrid-one", "private-head"}
    return "record-add-remove" if name in of_records else "record-replace" if "ldpfl" in name else "client"


def method_recipe(name: str) -> Recipe:
    """One of the methods, with three clients and three rounds."""
    tables = {**tiny.TINY, "data": {"source": "digits", "train_limit": 60, "test_limit": 30}}
    tables |= {"split": TWO_POINT["split"], "clients": {}}
    for key, value in METHODS[name].items():
        table, _, inner = key.partition(".")
        if inner:
            tables[table] = {**tables.get(table, {}), **({} if value is None else {inner: value})}
        else:
            tables[table] = value
    return Recipe.from_dict(tables)
