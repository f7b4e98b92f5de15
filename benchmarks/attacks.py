"""What one hostile client does to a shipped recipe, with and without its defence: the table of `docs/malicious.md`.

    python -m benchmarks.attacks                          all recipes and attacks (half an hour); writes the table
    python -m benchmarks.attacks --only webfed-digits     one recipe
    python -m benchmarks.attacks --validation --only webfed-digits --set method.norm=4
                                                          how settings are chosen: on examples that clients set aside
                                                          (data.validation = 0.2, seeds 11 to 16); writes nothing

The last client of each federation is hostile in every round. It knows the recipe, the model, its own examples and the
rule; it does not know what the others send in the same round. The accuracy is on the test set after the last round.
Results go to benchmarks/results/attacks.json, one recipe at a time.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.simulation import insert
from sordino.learning import models
from sordino.learning.cohort import ClientData
from sordino.learning.evaluation import score
from sordino.learning.private_sgd import PrivateTraining
from sordino.mechanisms import Mechanism
from sordino.mechanisms.output import BitOutput, IntegerOutput
from sordino.methods.fedavg import FedAvg
from sordino.methods.interface import Bench, Cohort
from sordino.methods.upload import PLAIN_LIMIT
from sordino.randomness import Keystream
from sordino.recipe import Recipe
from sordino.runs.federation import Federation, wire
from sordino.wire.messages import Plan

RESULTS = Path(__file__).parent / "results" / "attacks.json"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "malicious.md"
Float64s = NDArray[np.float64]

UNDEFENDED: dict[str, Any] = {"method.norm": None, "method.aggregation": {"kind": "mean"}}


def _stream(seed: int, round: int, clients: Sequence[int]) -> Keystream:
    return Keystream.simulation(seed, list(clients), round)


class Party:
    """The clients of a wired recipe in one process, with simulation streams; the last of them may be hostile."""

    def __init__(self, federation: Federation) -> None:
        assert isinstance(federation.method, FedAvg)
        self.federation, self.method = federation, federation.method
        self._bench = Bench()

    @cached_property
    def data(self) -> list[ClientData]:
        """The examples of every client."""
        found, constants = self.federation.dataset, self.federation.dataset.normalisation
        own = (found.train.take(part) for part in self.federation.parts)
        return [ClientData(torch.from_numpy(constants.apply(each.x)), torch.from_numpy(each.y)) for each in own]

    @property
    def clients(self) -> int:
        return self.federation.clients

    def bodies(self, plan: Plan, clients: Sequence[int], noise: float | None = None) -> list[bytes]:
        """Honest reports of some clients; of silos, with another noise multiplier where one is given."""
        method = self.method
        if noise is not None:
            assert isinstance(method.training, PrivateTraining)
            method = self._silo(noise)
        data = tuple(self.data[client] for client in clients)
        cohort = Cohort(tuple(clients), data, tuple({} for _ in data), tuple(len(own) for own in data))
        draw = partial(_stream, self.federation.recipe.seed, plan.round)
        return method.report(plan, cohort, draw, self._bench).bodies

    def _silo(self, noise: float) -> FedAvg:
        silo = copy.copy(self.method)
        assert isinstance(silo.training, PrivateTraining)
        silo.training = replace(silo.training, noise_multiplier=noise, coarsening=0)
        return silo

    def estimate(self, client: int, body: bytes) -> Float64s:
        """What a report stands for."""
        mechanism = self.mechanism(client)
        return np.asarray(mechanism.estimate(mechanism.decode([body], self.values))[0], np.float64)

    def mechanism(self, client: int) -> Mechanism:
        return self.method.upload(self._plan).mechanisms[self.method.class_of(client)]

    @cached_property
    def _plan(self) -> Plan:
        return self.method.plan(self.method.init(), "f")

    @property
    def values(self) -> int:
        return self.federation.upload.values

    def start(self, plan: Plan) -> Float64s:
        """What a client that learnt nothing would report: no change, or the weights as they are."""
        weights = plan.arrays["parameters"].astype(np.float64)
        return np.zeros_like(weights) if self.method._sends == "update" else weights

    def accuracy_with(self, noise: float) -> float:
        """After all rounds, the last client having chosen another noise multiplier for itself."""
        return self.accuracy(lambda plan: self.bodies(plan, [self.clients - 1], noise)[0])

    def accuracy(self, report: Callable[[Plan], bytes | None]) -> float:
        """After all rounds, the last client reporting what `report` says; None: it stays away."""
        state, last = self.method.init(), self.clients - 1
        for _ in range(self.federation.recipe.rounds.count):
            plan = self.method.plan(state, "f")
            asked = list(self.method.select(state))
            honest = [client for client in asked if client != last]
            bodies = dict(zip(honest, self.bodies(plan, honest), strict=True))
            if last in asked and (own := report(plan)) is not None:
                bodies[last] = own
            tally = self.method.tally(plan)
            refused = tally.add(list(bodies), list(bodies.values()))
            assert not refused, refused
            state = self.method.update(state, plan, tally)
        exam = self.federation.exams["validation" if self.federation.recipe.data.validation else "test"]
        loss, whole = models.loss_for(self.federation.recipe.model.name), slice(0, len(exam.examples))
        return score(self.federation.model, state.parameters, None, loss, exam, whole).accuracy


# --- attacks ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Hostile:
    """The last client of a party, and what it can say."""

    party: Party

    @property
    def client(self) -> int:
        return self.party.clients - 1

    @cached_property
    def _quiet(self) -> Party:
        """The same client without any randomness: it knows its own examples."""
        recipe = self.party.federation.recipe
        if isinstance(self.party.method.training, PrivateTraining):
            return self.party
        plain: dict[str, Any] = {"method.mechanism": {"name": "none"}, "method.range": None, "clients": {}}
        return Party(wire(recipe.with_(plain)))

    def progress(self, plan: Plan) -> Float64s:
        """What an honest client learns from these examples in this round, without noise."""
        private = isinstance(self.party.method.training, PrivateTraining)
        body = self._quiet.bodies(plan, [self.client], noise=1e-9 if private else None)[0]
        return np.frombuffer(body, "<f4").astype(np.float64) - self.party.start(plan)

    @property
    def length(self) -> float | None:
        """The announced norm; None where there is none."""
        return self.party.federation.upload.norm

    def say(self, wanted: Float64s) -> bytes:
        """The legal report that stands for the nearest to these values."""
        mechanism = self.party.mechanism(self.client)
        found = mechanism.reach(wanted.size, limit=16_000.0)
        values = np.clip(wanted, found.lowest, found.highest)
        output = mechanism.decode([found.ends[0]], wanted.size)
        match output:
            case BitOutput():
                return mechanism.encode(BitOutput.pack((values > (found.lowest + found.highest) / 2)[None]))[0]
            case IntegerOutput():
                low, high = int(output.low[0]), int(output.high[0])
                steps = (found.highest - found.lowest) / (high - low)
                whole = np.clip(np.rint((values - found.lowest) / steps) + low, low, high).astype(output.array.dtype)
                return mechanism.encode(replace(output, array=whole[None]))[0]
        return values.astype("<f4").tobytes()

    # --- what it sends

    def honest(self, plan: Plan) -> bytes | None:
        return self.party.bodies(plan, [self.client])[0]

    def away(self, plan: Plan) -> bytes | None:
        return None

    def loud(self, plan: Plan) -> bytes | None:
        """The largest and the smallest legal value in turn."""
        return self.say(PLAIN_LIMIT * np.where(np.arange(self.party.values) % 2, 1.0, -1.0))

    def directed(self, plan: Plan) -> bytes | None:
        """As far as it is let against what an honest client would learn."""
        against = -self.progress(plan)
        if self.length is None:
            return self.say(PLAIN_LIMIT * np.sign(against))
        return self.say(self.length * against / np.linalg.norm(against))

    def hidden(self, plan: Plan) -> bytes | None:
        """The same with a third of an honest report's length, the rest noise like everybody's."""
        honest = self.party.estimate(self.client, self.honest(plan) or b"") - self.party.start(plan)
        against = -self.progress(plan)
        noise = honest + against
        whole = float(np.linalg.norm(honest))
        lie = whole / 3 * against / np.linalg.norm(against)
        rest = np.sqrt(8) / 3 * whole * noise / max(float(np.linalg.norm(noise)), 1e-12)
        return self.say(self.party.start(plan) + lie + rest)

    def late(self, plan: Plan) -> bytes | None:
        """Honest until the last round, and then as far as it is let against what was learnt."""
        return self.directed(plan) if plan.round == self.party.federation.recipe.rounds.count else self.honest(plan)

    def one_class(self, plan: Plan) -> bytes | None:
        """As far as it is let towards calling everything the first class."""
        data, towards = self.party.data[self.client], np.zeros(self.party.values)
        picture = data.x[data.y == 0].reshape(-1, data.x[0].numel()).mean(0).numpy()
        layout = self.party.federation.layout
        towards[: picture.size] = picture
        towards[layout.sizes[0]] = 1.0  # the bias of the first class
        far = self.length or PLAIN_LIMIT
        return self.say(self.party.start(plan) + far * towards / np.linalg.norm(towards))

    def reversed(self, plan: Plan) -> bytes | None:
        """Its own honest report the other way round: what wrong labels come to."""
        start = self.party.start(plan)
        return self.say(2 * start - self.party.estimate(self.client, self.honest(plan) or b""))


ATTACKS: dict[str, Callable[[Hostile, Plan], bytes | None]] = {
    "nobody is hostile": Hostile.honest,
    "it stays away": Hostile.away,
    "largest values": Hostile.loud,
    "directed": Hostile.directed,
    "directed, hidden in noise": Hostile.hidden,
    "directed, in the last round only": Hostile.late,
    "one class": Hostile.one_class,
    "its report reversed": Hostile.reversed,
}

RECIPES = {  #: what is attacked, and over how many seeds
    "webfed-digits": ("silo-dp, 1 of 5", 10),
    "webfed-digits-laplace": ("webfed, Laplace, 1 of 5", 3),
    "two-point-digits": ("fedavg, two-point, 1 of 20", 5),
}


# --- measuring --------------------------------------------------------------------------------------------------------


def accuracy(recipe: Recipe, attack: str) -> float:
    """Of one run with one hostile client."""
    hostile = Hostile(Party(wire(recipe)))
    return hostile.party.accuracy(lambda plan: ATTACKS[attack](hostile, plan))


def _recipes(name: str, changes: dict[str, Any], seeds: Sequence[int]) -> Iterator[Recipe]:
    for seed in seeds:
        yield Recipe.load(name).with_({**changes, "seed": seed})


def defences(name: str) -> dict[str, dict[str, Any]]:
    """Without and with what the recipe says; one alone where it says nothing."""
    given: Any = Recipe.load(name).method
    if given.aggregation.kind == "mean" and getattr(given, "norm", None) is None:
        return {"with": {}}
    without = {key: value for key, value in UNDEFENDED.items() if hasattr(given, key.removeprefix("method."))}
    return {"without": without, "with": {}}


def measure(name: str, seeds: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Accuracies by attack and defence, one for each seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for attack in ATTACKS:
        for defence, changes in defences(name).items():
            own = [round(accuracy(recipe, attack), 4) for recipe in _recipes(name, changes, seeds)]
            found.setdefault(attack, {})[defence] = own
            print(f"{name}, {attack}, {defence}: {100 * statistics.mean(own):.1f} %", flush=True)
    return found


def rows(found: dict[str, dict[str, dict[str, list[float]]]]) -> list[list[str]]:
    """The table: mean accuracy over seeds."""

    def cell(own: dict[str, list[float]], defence: str) -> str:
        return f"{100 * statistics.mean(own[defence]):.1f} %" if defence in own else "the same"

    head = ["recipe", "method", "attack", "without the defence", "with it"]
    table = [head]
    for name, attacks in found.items():
        for number, (attack, own) in enumerate(attacks.items()):
            first = [f"`{name}`, {len(own['with'])} seeds", RECIPES[name][0]] if number == 0 else ["", ""]
            only = "without" not in own
            without = cell(own, "with" if only else "without")
            table.append([*first, attack, without, "none is needed" if only else cell(own, "with")])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="one recipe")
    parser.add_argument("--validation", action="store_true", help="score on examples set aside, and write nothing")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="with --validation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in RECIPES if options.only in ("", name)]
    if options.validation:
        for name in names:
            for attack in ATTACKS:
                chosen = [
                    accuracy(Recipe.load(name, [*options.set, "data.validation=0.2", f"seed={seed}"]), attack)
                    for seed in range(11, 17)
                ]
                print(f"{name}, {attack}: {100 * statistics.mean(chosen):.1f} %", flush=True)
        return
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        found[name] = measure(name, range(1, RECIPES[name][1] + 1))
        RESULTS.write_text(json.dumps({each: found[each] for each in RECIPES if each in found}, indent=1) + "\n")
    if set(found) == set(RECIPES):
        insert(PAGE, {"attacks": rows({name: found[name] for name in RECIPES})})


if __name__ == "__main__":
    main()
