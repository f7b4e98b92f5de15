"""What one hostile client does to a shipped recipe, with and without its defence: the table of `docs/malicious.md`.

    python -m benchmarks.attacks                          all cases and attacks (an hour); writes the table
    python -m benchmarks.attacks --only webfed-digits     one case
    python -m benchmarks.attacks --attack adaptive        one attack; the other rows keep their figures
    python -m benchmarks.attacks --validation --only webfed-digits --set method.norm=4
                                                          how settings are chosen: on examples that clients set aside
                                                          (data.validation = 0.2, seeds 11 to 16); writes nothing

The last client of each federation is hostile in every round. It knows the recipe, the model, its own examples, the rule
and all earlier plans; it does not know what the others send in the same round. The accuracy is on the test set after
the last round. Results go to benchmarks/results/attacks.json, one case and attack at a time.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.simulation import insert
from sordino.learning import datasets, models
from sordino.learning.cohort import ClientData
from sordino.learning.evaluation import ExamPiece, score
from sordino.learning.examples import Dataset, Examples
from sordino.learning.private_sgd import PrivateTraining
from sordino.mechanisms import Mechanism
from sordino.mechanisms.output import BitOutput, IntegerOutput
from sordino.methods.interface import Bench, Cohort, Method
from sordino.methods.upload import PLAIN_LIMIT
from sordino.randomness import Keystream
from sordino.recipe import Recipe
from sordino.runs.federation import Federation, wire
from sordino.wire.messages import Plan

RESULTS = Path(__file__).parent / "results" / "attacks.json"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "malicious.md"
Float64s = NDArray[np.float64]

FADING = 0.8  #: what a change of the round before counts in the past that the adaptive attack follows
FOLLOWING = 0.7  #: the part of its length along that past; of 0, 0.2, 0.5, 0.7 and 0.8 the one that cost most
UNDEFENDED: dict[str, Any] = {"method.norm": None, "method.aggregation": {"kind": "mean"}}


def _stream(seed: int, round: int, clients: Sequence[int]) -> Keystream:
    return Keystream.simulation(seed, list(clients), round)


class Party:
    """The clients of a wired recipe in one process, with simulation streams; the last of them may be hostile."""

    def __init__(self, federation: Federation) -> None:
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

    def _silo(self, noise: float) -> Method:
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
        return np.zeros_like(weights) if self.method.spec.sends_updates else weights

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
        loss, whole = models.loss_for(self.federation.recipe.model.name), ExamPiece(exam, slice(0, len(exam.examples)))
        return score(self.federation.model, state.parameters, None, loss, whole).accuracy


# --- attacks ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Hostile:
    """The last client of a party, and what it can say."""

    party: Party
    _model: Float64s | None = field(default=None, init=False)  #: of the plan before
    _changes: Float64s | float = field(default=0.0, init=False)  #: of the model over all plans so far, faded

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
        plain["method.aggregation"] = {"kind": "mean"}  # others go by the noise, and there is none
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

    def adaptive(self, plan: Plan) -> bytes | None:
        """As long as an honest report: partly along the model's past changes, the rest against what is learnt.

        A rule that compares directions with those of the others sees a report that agrees with them.
        """
        model = plan.arrays["parameters"].astype(np.float64)
        if self._model is not None:
            self._changes = FADING * self._changes + model - self._model
        self._model = model
        start, learnt = self.party.start(plan), self.progress(plan)
        length = self.length or float(
            np.linalg.norm(self.party.estimate(self.client, self.honest(plan) or b"") - start)
        )
        past = self._changes if np.any(self._changes) else learnt
        along = past / np.linalg.norm(past)
        against = along * (learnt @ along) - learnt
        against /= max(float(np.linalg.norm(against)), 1e-12)
        return self.say(start + length * (FOLLOWING * along + np.sqrt(1 - FOLLOWING**2) * against))

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
    "adaptive": Hostile.adaptive,
}
FEW = ("nobody is hostile", "it stays away", "directed", "adaptive")


def repeated_digits(copies: int) -> Dataset:
    """The digits with every training example so many times: for more participants with as many examples each."""
    digits = datasets.load("digits")
    x, y = (np.concatenate([each] * copies) for each in (digits.train.x, digits.train.y))
    return replace(digits, train=Examples(x, y))


@dataclass(frozen=True)
class Case:
    """A recipe that is attacked, over how many seeds and in which ways."""

    recipe: str
    method: str
    seeds: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    attacks: Sequence[str] = tuple(ATTACKS)


def _crowd(clients: int) -> dict[str, Any]:
    repeated = {"source": "benchmarks.attacks:repeated_digits", "arguments": {"copies": clients // 5}}
    return {"data": repeated, "split.clients": clients}


CASES = {
    "webfed-digits": Case("webfed-digits", "silo-dp, 1 of 5", 10),
    "webfed-digits, 10 pages": Case("webfed-digits", "silo-dp, 1 of 10", 5, _crowd(10), FEW),
    "webfed-digits, 20 pages": Case("webfed-digits", "silo-dp, 1 of 20", 5, _crowd(20), FEW),
    "webfed-digits-laplace": Case("webfed-digits-laplace", "webfed, Laplace, 1 of 5", 3),
    "two-point-digits": Case("two-point-digits", "fedavg, two-point, 1 of 20", 5),
    "two-point-digits, 5 clients": Case(
        "two-point-digits", "fedavg, two-point, 1 of 5", 5, {"split.clients": 5}, FEW
    ),
    "ldp-fl-digits, 5 clients": Case(
        "ldp-fl-digits",
        "ldp-fl, adaptive range, 1 of 5",
        3,
        {"split.clients": 5, "method.channel": {"kind": "direct"}},
        FEW,
    ),
}  # fmt: skip

ON_PAGE = [name for name in CASES if name not in ("webfed-digits, 10 pages", "two-point-digits")]


# --- measuring --------------------------------------------------------------------------------------------------------


def accuracy(recipe: Recipe, attack: str) -> float:
    """Of one run with one hostile client."""
    hostile = Hostile(Party(wire(recipe)))
    return hostile.party.accuracy(lambda plan: ATTACKS[attack](hostile, plan))


def defences(case: Case) -> dict[str, dict[str, Any]]:
    """Without and with what the recipe says; one alone where it says nothing."""
    given: Any = Recipe.load(case.recipe).method
    if given.aggregation.kind == "mean" and getattr(given, "norm", None) is None:
        return {"with": {}}
    without = {key: value for key, value in UNDEFENDED.items() if hasattr(given, key.removeprefix("method."))}
    return {"without": without, "with": {}}


def measure(name: str, attack: str) -> dict[str, list[float]]:
    """Accuracies by defence, one for each seed."""
    case, found = CASES[name], {}
    for defence, changes in defences(case).items():
        recipe = Recipe.load(case.recipe).with_({**case.changes, **changes})
        own = [round(accuracy(recipe.with_({"seed": seed}), attack), 4) for seed in range(1, case.seeds + 1)]
        found[defence] = own
        print(f"{name}, {attack}, {defence}: {100 * statistics.mean(own):.1f} %", flush=True)
    return found


def rows(found: dict[str, dict[str, dict[str, list[float]]]]) -> list[list[str]]:
    """The table of the page: mean accuracy over seeds, with the recipe's own defence where nothing else is said."""

    def cell(name: str, attack: str, defence: str = "with") -> str:
        own = found[name][attack].get(defence)
        return f"{100 * statistics.mean(own):.1f} %" if own else ""

    table = [["recipe", "hostile", "nobody hostile", "directed, defence off", "directed", "adaptive"]]
    for name in ON_PAGE:
        recipe, _, more = name.partition(",")
        seeds = len(found[name]["directed"]["with"])
        table.append([
            f"`{recipe}`{',' * bool(more)}{more}, {seeds} seeds", CASES[name].method.rpartition(", ")[2],
            cell(name, "nobody is hostile"), cell(name, "directed", "without"), cell(name, "directed"),
            cell(name, "adaptive"),
        ])  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="one case")
    parser.add_argument("--attack", default="", help="one attack")
    parser.add_argument("--validation", action="store_true", help="score on examples set aside, and write nothing")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="with --validation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = {
        name: [attack for attack in case.attacks if options.attack in ("", attack)]
        for name, case in CASES.items()
        if options.only in ("", name)
    }
    if options.validation:
        for name, attacks in wanted.items():
            aside = Recipe.load(CASES[name].recipe, [*options.set, "data.validation=0.2"]).with_(CASES[name].changes)
            for attack in attacks:
                chosen = [accuracy(aside.with_({"seed": seed}), attack) for seed in range(11, 17)]
                print(f"{name}, {attack}: {100 * statistics.mean(chosen):.1f} %", flush=True)
        return
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, attacks in wanted.items():
        for attack in attacks:
            found.setdefault(name, {})[attack] = measure(name, attack)
            RESULTS.write_text(json.dumps(_in_order(found), indent=1) + "\n")
    if all(attack in found.get(name, {}) for name, case in CASES.items() for attack in case.attacks):
        insert(PAGE, {"attacks": rows(_in_order(found))})


def _in_order(found: dict[str, dict[str, dict[str, list[float]]]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Cases and attacks as they are listed above."""
    return {
        name: {attack: found[name][attack] for attack in case.attacks if attack in found[name]}
        for name, case in CASES.items()
        if name in found
    }


if __name__ == "__main__":
    main()
