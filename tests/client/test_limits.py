"""The owner's limits: what exceeds one is declined by its name, before much is spent; others are answered meanwhile."""

import resource
import shutil
import socket
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from sordino.channels.secagg import SumServer
from sordino.channels.secure_sum import Members, Summed
from sordino.channels.secure_sum import _with_plan as encoded_with_plan
from sordino.client.client import Client
from sordino.client.clock import Clock, Overran
from sordino.client.invitation import DEEPEST_KEY, LONGEST_RECIPE
from sordino.client.membership import Membership
from sordino.client.refusal import Reason, Refused
from sordino.client.settings import OwnLimits, Settings
from sordino.client.socket_service import CONNECTIONS, Connections, Service
from sordino.client.work_limits import Guard
from sordino.errors import InvalidInput
from sordino.mechanisms import FixedPoint
from sordino.methods import randomised_records
from sordino.methods.randomised_records import BitRecords, at_once
from sordino.parts import registry
from sordino.parts.toml import deepest_key
from sordino.randomness import Keystream
from sordino.recipe import shipped
from sordino.runs.federation import wire
from sordino.wire import requests
from sordino.wire.messages import Answer, Kind
from sordino.wire.requests import Request, Response, What
from tests.client import people
from tests.client.people import COST, KEY, NAME, body, invitation, plans, recipe, settings, signed
from tests.engine import tiny


def features(**method: Any) -> dict[str, Any]:
    """A linear head on features of records."""
    own: dict[str, Any] = people.METHODS["private-head"]
    return {**own, "method": {**own["method"], **method}}


COMPLETE = {"kind": "summed", "sparse_from": 10**6}  #: every client deals with all others

#: what a recipe asks for, by the limit that it exceeds
HOSTILE: dict[str, tuple[Reason, dict[str, Any]]] = {
    "rounds": (Reason.LIMIT_ROUNDS, {"rounds.count": 20_000}),
    "steps": (Reason.LIMIT_SECONDS, {"training": {"steps": 10**9}}),
    "epochs": (Reason.LIMIT_SECONDS, {"training.epochs": 10**6}),
    "noisy steps": (Reason.LIMIT_SECONDS, {**people.METHODS["silo-dp"], "method.steps": 10**9}),
    "wide": (Reason.LIMIT_PARAMETERS, {"model": {"name": "mlp", "options": {"hidden": [30_000, 30_000]}}}),
    "wider": (Reason.LIMIT_PARAMETERS, {"model": {"name": "mlp", "options": {"hidden": [10**9, 10**9, 10**9]}}}),
    "deep": (Reason.LIMIT_LAYERS, {"model": {"name": "mlp", "options": {"hidden": [1] * 5000}}}),
    "clients of a sum": (
        Reason.LIMIT_SECONDS,
        {"split": {"kind": "iid", "clients": 60_000, "at_least": 0}, "method.channel": COMPLETE},
    ),
    "values of a sum": (
        Reason.LIMIT_SECONDS,
        {
            "split": {"kind": "iid", "clients": 30_000, "at_least": 0},
            "method.channel": COMPLETE,
            "model": {"name": "mlp", "options": {"hidden": [100_000]}},
        },
    ),
    "more clients than a sum has": (
        Reason.LIMIT_SECONDS,
        {"split": {"kind": "iid", "clients": 70_000, "at_least": 0}, "method.channel": {"kind": "summed"}},
    ),
    "epsilons": (
        Reason.LIMIT_STRENGTHS,
        {"split": {"kind": "iid", "clients": 5000, "at_least": 0}, "clients.epsilon": {"linear": [1.0, 2.0]}},
    ),
    "records of many bits": (
        Reason.LIMIT_MEMORY,
        {
            "method": {
                "name": "ldpfl",
                "extractor": {
                    "kind": "random",
                    "model": "cnn-wide",
                    "options": {"channels": [1, 20_000], "hidden": 1, "padding": 2},
                },
                "encoding": {"whole": 20, "fraction": 20},
            },
            "model": {"name": "ldpfl-dense", "options": {"hidden": [1]}},
            "clients.epsilon": 0.5,
        },
    ),
    "features of many records": (Reason.LIMIT_MEMORY, features(announced_size=10**7)),
    "features that take long": (
        Reason.LIMIT_SECONDS,
        features(announced_size=10**6, extractor={"kind": "scattering", "scales": 3, "angles": 32}),
    ),
    "batch": (Reason.LIMIT_MEMORY, {"training": {"steps": 1, "batch_size": 10**8}}),
    "trained extractor": (
        Reason.LIMIT_SECONDS,
        {
            "method": {
                "name": "ldpfl",
                "extractor": {"kind": "trained", "model": "ldp-fed", "training": {"epochs": 10**6}},
            },
            "model": {"name": "ldpfl-dense", "options": {"hidden": [8]}},
            "clients.epsilon": 0.5,
        },
    ),
}


def limited(limits: dict[str, Any] | None = None, **tables: Any) -> Settings:
    return settings(**tables).model_copy(update={"limits": OwnLimits(**(limits or {}))})


def hurry(client: Client, seconds: float) -> None:
    """From now on each round has so long; joining took as long as it took."""
    client._member(NAME).seconds = seconds


def hostile(name: str) -> Any:
    return tiny.recipe({**people.TWO_POINT, **HOSTILE[name][1]})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_recipe_beyond_a_limit_is_refused_by_its_name_before_anything_is_spent(tmp_path: Path, name: str) -> None:
    reason, _ = HOSTILE[name]
    given = invitation(hostile(name)).encode()
    with people.client(tmp_path / "a") as client:
        client.offer(invitation().encode())  # the libraries are loaded by now
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        with pytest.raises(Refused) as caught:
            client.join(given)
        assert caught.value.reason is reason
        assert reason.limit in str(caught.value) and reason.limit in reason.value
        assert time.monotonic() - begun < 5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
        assert client.federations() == {}


def many(**changes: Any) -> dict[str, Any]:
    """2,000 clients of a secure sum in which a tenth may drop out; training takes next to nothing."""
    channel = {"kind": "summed", "threshold": 0.9, **changes.pop("channel", {})}
    split = {"kind": "iid", "clients": 2000, "at_least": 0}
    return {"split": split, "training": {"steps": 1, "batch_size": 1}, "method.channel": channel, **changes}


HALVES = {"clients.epsilon": {"values": [1.0, 2.0], "shares": [0.5, 0.5]}}
SHARED_NOISE = {**features(channel=many()["method.channel"]), "split": many()["split"]}  #: on no sparse graph


@pytest.mark.parametrize(
    ("changes", "seconds", "accepted"),
    [
        (many(), 0.2, True),  # 101 neighbours each
        (many(), 0.15, False),
        (many(channel={"sparse_from": 2001}), 1.0, False),
        (many(**HALVES), 0.2, True),
        (many(**HALVES, **{"method.selection": {"kind": "count", "k": 1900}}), 0.2, True),
        (many(**HALVES, **{"method.selection": {"kind": "count", "k": 1200}}), 0.2, False),  # it may be 499
        (many(**HALVES, **{"method.selection": {"kind": "probability", "p": 0.99}}), 0.2, False),
        (SHARED_NOISE, 1.0, False),
        (SHARED_NOISE, 3.0, True),
    ],
)
def test_a_sum_is_estimated_on_the_graph_that_it_uses(changes: dict[str, Any], seconds: float, accepted: bool) -> None:
    """Of the guard alone: so short a limit would end the joining, too."""
    guard, method = Guard(NAME, OwnLimits(seconds=seconds)), people.wire(recipe(changes)).method
    if accepted:
        guard.check_sums(method, 0)
        return
    with people.refused(Reason.LIMIT_SECONDS):
        guard.check_sums(method, 0)


# --- the text of a recipe

DEEP = ".".join(["a"] * 20_000)

#: texts that take long to read, or that a parser of TOML does not read at all
UNREADABLE = {
    "key": f"{DEEP} = 1",
    "table": f"[{DEEP}]",
    "quoted key": '"\\""' + '."\\""' * 20_000 + " = 1",
    "spaced key": DEEP.replace(".", " .\t") + " = 1",
    "after a text": f'x = {{ a = """\n\' """", {DEEP} = 1 }}',
    "after a comment": f"# \"\n# '''\n{DEEP} = 1",
    "long": "x = [" + "1, " * 100_000 + "]",
    "number": "x = " + "9" * 5000,
    "nested": "x = " + "[" * 5000,
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_recipe_that_takes_long_to_read_is_refused_before_it_is_parsed(tmp_path: Path, text: str) -> None:
    with people.client(tmp_path / "a") as client:
        begun = time.monotonic()
        with pytest.raises(Refused) as caught:
            client.offer(replace(people.terms(), recipe=text).invitation(0, people.KEY).encode())
        assert caught.value.reason is Reason.NOT_IN_RECIPE
        assert time.monotonic() - begun < 2  # 4 s and more for each of the keys, and the square of their length


def test_the_deepest_key_of_a_text_is_found_where_a_parser_sees_it() -> None:
    assert deepest_key("") == 0
    assert deepest_key("a = 1\nb.c = 0.5\n[x.\"y.z\".'w']") == 3
    assert deepest_key('a = "b.c.d.e"  # f.g.h.i') == 1
    assert deepest_key('a = """\nb.c.d\n""" \nb . c.d = 1') == 3
    assert deepest_key("a = '''b.c.d' ''''\nb.c = 1") == 2
    assert deepest_key(recipe().to_toml()) < DEEPEST_KEY
    assert all(deepest_key(text.read_text(encoding="utf-8")) < DEEPEST_KEY for text in shipped().values())


def test_a_recipe_that_is_too_long_is_refused_to_its_server() -> None:
    many = recipe({"split": {"kind": "iid", "clients": 30_000, "at_least": 0}, "clients.epsilon": [1.25] * 30_000})
    with pytest.raises(InvalidInput, match=f"{LONGEST_RECIPE:,}"):
        invitation(many)


# --- models of the owner's own


class Looking(nn.Module):
    """An owner's own network, which looks at a value: meta tensors have none."""

    def __init__(self, classes: int, width: int = 8, depth: int = 1) -> None:
        super().__init__()
        middle = [nn.Linear(width, width) for _ in range(depth)]
        self.layers = nn.Sequential(nn.Linear(64, width), *middle, nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x.flatten(1))
        return scores / 2 if float(scores.detach().abs().max()) > 1e6 else scores


class Counting(Looking):
    """The same, and it looks at a value when it is made."""

    def __init__(self, classes: int, width: int = 8, depth: int = 1) -> None:
        super().__init__(classes, width, depth)
        self.largest = float(self.layers[0].weight.detach().abs().max())


def own_model(name: str, **options: int) -> Any:
    return recipe({"model": {"name": f"tests.client.test_limits:{name}", "options": options}})


OWN_CODE = [f"tests.client.test_limits:{name}" for name in ("Looking", "Counting")]


@pytest.mark.parametrize("name", ["Looking", "Counting"])
def test_a_model_of_ones_own_that_looks_at_values_is_joined(tmp_path: Path, name: str) -> None:
    given = own_model(name)
    with people.joined(tmp_path / "a", given, settings(code=OWN_CODE, unproven=["model update"])) as client:
        assert client.reply("report", signed(plans(given)(1), given=given)).reason == ""


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("Looking", {"width": 20_000}, Reason.LIMIT_PARAMETERS),
        ("Looking", {"depth": 2000}, Reason.LIMIT_LAYERS),
        ("Counting", {"width": 20_000}, Reason.LIMIT_PARAMETERS),
        ("Counting", {"depth": 2000}, Reason.LIMIT_LAYERS),
    ],
)
def test_a_model_of_ones_own_that_is_too_large_is_refused_before_it_takes_memory(
    tmp_path: Path, name: str, options: dict[str, int], reason: Reason
) -> None:
    with people.client(tmp_path / "a", settings(code=OWN_CODE)) as client:
        client.offer(invitation().encode())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(Refused) as caught:
            client.offer(invitation(own_model(name, **options)).encode())
        assert caught.value.reason is reason
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes; 1.6 GB if built


@pytest.mark.parametrize(("angles", "reason"), [(2, Reason.CONSENT), (32, Reason.LIMIT_SECONDS)])
def test_the_time_that_features_take_is_limited(tmp_path: Path, angles: int, reason: Reason) -> None:
    """32 angles at 3 scales take about 60 seconds for 10,000 images of 8x8; 2 take less than one."""
    given = tiny.recipe(
        {
            "method": {"name": "ldpfl", "extractor": {"kind": "scattering", "scales": 3, "angles": angles}},
            "model": {"name": "ldpfl-dense", "options": {"hidden": [1]}},
            "clients.epsilon": 0.5,
        }
    )
    limits = {"seconds": 50, "memory": 10**6}
    with people.client(tmp_path / "a", limited(limits)) as client, people.refused(reason) as caught:
        client.join(invitation(given).encode())
    assert ("for features" in str(caught.value)) == (reason is Reason.LIMIT_SECONDS)


def test_accounting_is_limited_by_the_releases_of_a_schedule(tmp_path: Path) -> None:
    with people.client(tmp_path / "a", limited({"accounting": 2})) as client:
        with pytest.raises(Refused) as caught:
            client.offer(invitation().encode())
        assert caught.value.reason is Reason.LIMIT_ACCOUNTING
    with people.client(tmp_path / "b", limited({"accounting": 3})) as client:
        assert client.offer(invitation().encode()).fits == 3


def test_a_schedule_as_long_as_the_limit_is_accounted_for_in_seconds(tmp_path: Path) -> None:
    given = people.method_recipe("silo-dp").with_({"rounds.count": 1000})
    own = limited(limit=1e9, budget={"delta": 1e-5, "adjacency": "record-add-remove"})
    with people.client(tmp_path / "a", own) as client:
        begun = time.monotonic()
        assert client.offer(invitation(given).encode()).fits == 1000
        assert time.monotonic() - begun < 20  # 5 here; each release by itself took 70


@pytest.mark.parametrize("limit", ["parameters", "layers", "rounds", "seconds", "memory", "accounting"])
def test_a_limit_that_was_lowered_since_declines_what_was_agreed_to(tmp_path: Path, limit: str) -> None:
    people.joined(tmp_path / "a").close()
    lower = {"parameters": 649, "layers": 1, "rounds": 2, "seconds": 1e-3, "memory": 1, "accounting": 2}[limit]
    own = limited({limit: lower}, rows="0-19")
    changes: dict[str, dict[str, Any]] = {
        "memory": {"training.batch_size": 2000},
        "layers": {"model": {"name": "mlp", "options": {"hidden": [4]}}},
    }
    given = recipe(changes[limit]) if limit in changes else None
    if given is not None:
        with Client.open(tmp_path / "a") as client:
            client.join(invitation(given, name="other").encode())
    (tmp_path / "a" / "client.toml").write_text(own.to_toml())
    with Client.open(tmp_path / "a") as client:
        assert client.settings.limits == own.limits
        name = NAME if given is None else "other"
        reply = client.reply("report", signed(plans(given, name)(1), given=given))
        assert reply.reason.endswith(f"limits.{limit}")
        assert Answer.decode(reply.payload).kind is Kind.DECLINED
        assert client.standing.spent == 0


def test_settings_with_limits_and_a_second_budget_are_written_and_read_again() -> None:
    own = settings()
    tables = {"data": {"source": "digits"}, "budget": {"limit": 4}, "limits": {"seconds": 60, "rounds": 5}}
    full = Settings.of({**tables, "summed_budget": {"limit": 1, "honest": 7, "delta": 1e-5}})
    assert full.limits.seconds == 60.0 and full.summed_budget is not None and full.summed_budget.limit == 1.0
    for given in (own, full):
        assert Settings.of(tomllib.loads(given.to_toml())) == given
    with pytest.raises(InvalidInput, match=r"limits\.rounds"):
        Settings.of({**tables, "limits": {"rounds": 0}})


def test_every_shipped_method_is_within_the_limits(tmp_path: Path) -> None:
    for name in people.METHODS:
        allowed = ("digits", "encoded records", "labels", "update", "model update", "number of records")
        with people.client(tmp_path / name, settings(unproven=list(allowed))) as client:
            try:
                client.offer(invitation(people.method_recipe(name)).encode())
            except Refused as error:
                assert not error.reason.limit, error


# --- what a client builds


def test_a_client_builds_the_mechanism_of_its_own_epsilon_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 epsilons and 1,000 rounds took 54 seconds when all were built, and 2,000 of Laplace noise 4 GB."""
    built = list[float | None]()

    def counted(real: Any) -> Any:
        def build(self: Any, epsilon: float | None, vectors: Any) -> Any:
            built.append(epsilon)
            return real(self, epsilon, vectors)

        return build

    for table in registry.tables("mechanism").values():
        monkeypatch.setattr(table, "build", counted(table.build))
    many = {"split": {"kind": "iid", "clients": 1000, "at_least": 0}, "clients.epsilon": {"linear": [1.0, 2.0]}}
    own = limited({"rounds": 300}, limit=1e9)
    for name in ("fedavg", "webfed", "personalized"):
        given = people.method_recipe(name).with_({**many, "rounds.count": 300})
        with people.client(tmp_path / name, own) as client:
            begun = time.monotonic()
            assert client.offer(invitation(given, 999).encode()).fits == 300
            assert time.monotonic() - begun < 10
        assert set(built) == {2.0}
        built.clear()


@pytest.mark.parametrize("epsilon", [1e8, 1e300])
def test_an_epsilon_of_bits_that_hides_nothing_is_refused_in_words(tmp_path: Path, epsilon: float) -> None:
    changes = {"method.mechanism": {"name": "optimised"}, "clients.epsilon": epsilon}
    given = people.method_recipe("ldpfl").with_(changes)
    with people.client(tmp_path / "a", settings(unproven=["labels", "randomised features"])) as client:
        begun = time.monotonic()
        with pytest.raises(Refused, match="at most 1e6") as caught:
            client.offer(invitation(given).encode())
        assert caught.value.reason is Reason.NOT_IN_RECIPE
        assert time.monotonic() - begun < 5


def test_records_of_many_bits_are_randomised_a_few_at_a_time_and_alike() -> None:
    assert at_once(1024) == 512 and at_once(2**22) == 2 and at_once(2**30) == 1
    code, spec = FixedPoint(4, 5), people.method_recipe("ldpfl").method.mechanism
    features = np.linspace(-3, 3, 6 * 30).reshape(6, 30).astype(np.float32)
    labels, draw = np.zeros(6, np.int64), Keystream(bytes(32), [0], 0)
    records = BitRecords(spec, code, 30, [100.0], "plain")
    together = records.randomise(features, labels, 0, draw)["records"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomised_records, "VALUES_AT_ONCE", 700)
        apart = records.randomise(features, labels, 0, draw)["records"]
    assert np.array_equal(together, apart)


# --- the clock


def forever(*_: Any) -> Any:
    """Training that does not end, and does not care who wants it to."""
    while True:
        with suppress(Exception):
            time.sleep(0.001)


def test_a_computation_that_overruns_ends_and_its_report_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Membership.report
    with people.joined(tmp_path / "a") as client:
        hurry(client, 0.5)
        monkeypatch.setattr(Membership, "report", forever)
        begun = time.monotonic()
        reply = client.reply("report", signed(plans()(1)))
        assert time.monotonic() - begun < 3
        assert reply.reason == "" and len(body(reply.payload)) == 82
        assert client.standing.spent == pytest.approx(COST)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("computing")]
        assert client.reply("report", signed(plans()(1))).payload == reply.payload
        monkeypatch.setattr(Membership, "report", real)
        assert client.reply("report", signed(plans()(2))).reason == ""


@pytest.mark.parametrize("failure", [SystemExit, GeneratorExit, KeyboardInterrupt, BaseException, MemoryError])
def test_training_that_asks_for_the_end_of_the_process_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    def fail(*_: Any) -> Any:
        raise failure("no")

    with people.joined(tmp_path / "a") as client:
        monkeypatch.setattr(Membership, "report", fail)
        reply = client.reply("report", signed(plans()(1)))
        assert reply.reason == "" and len(body(reply.payload)) == 82


def test_where_nothing_hides_no_change_an_overrun_declines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tiny.recipe({k: v for k, v in people.TWO_POINT.items() if k not in tiny.TWO_POINT})
    with people.joined(tmp_path / "a", bare, limited(unproven=["model update"])) as client:
        hurry(client, 0.5)
        monkeypatch.setattr(Membership, "report", forever)
        reply = client.reply("report", signed(plans(bare)(1), given=bare))
        assert reply.reason == Reason.LIMIT_SECONDS.value
        assert Answer.decode(reply.payload).kind is Kind.DECLINED
        assert client.standing.releases == 0


def test_the_clock_hands_on_what_is_computed_or_raised_and_leaves_behind_what_does_not_end() -> None:
    clock, stop = Clock(), threading.Event()
    assert clock.run("a", 5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        clock.run("a", 5, lambda: 1 // 0)
    with pytest.raises(Overran):
        clock.run("a", 0.05, stop.wait)  # waits in C
    begun = time.monotonic()
    with pytest.raises(Overran):
        clock.run("a", 5, lambda: 7)
    assert time.monotonic() - begun < 0.5
    assert clock.run("b", 5, lambda: 8) == 8
    stop.set()
    time.sleep(0.2)
    assert clock.run("a", 5, lambda: 7) == 7


def test_a_membership_that_takes_too_long_to_build_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "check", forever)
    with people.client(tmp_path / "a", limited({"seconds": 0.5})) as client:
        begun = time.monotonic()
        with pytest.raises(Refused) as caught:
            client.join(invitation().encode())
        assert caught.value.reason is Reason.LIMIT_SECONDS
        assert time.monotonic() - begun < 3
        assert client.federations() == {}


# --- others meanwhile


class Slow:
    """In the place of a method: its calls for one federation wait until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.go_on, self.begun = threading.Event(), threading.Event()
        real, slow = getattr(owner, name), self

        def waiting(self: Any, *given: Any, **named: Any) -> Any:
            if slow.concerns(self, given):
                slow.begun.set()
                while not slow.go_on.is_set():
                    time.sleep(0.005)
            return real(self, *given, **named)

        monkeypatch.setattr(owner, name, waiting)

    @staticmethod
    def concerns(self: Any, given: Any) -> bool:
        """Whether a call is about the first of two federations."""
        plan = getattr(self, "_at", None)
        names = [getattr(self, "federation", None), getattr(plan and plan.plan, "federation", None)]
        return NAME in (*names, *(getattr(each, "federation", None) for each in given))

    @contextmanager
    def meanwhile(self, call: Callable[[], Any]) -> Iterator[Future[Any]]:
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(call)
            try:
                assert self.begun.wait(20)
                yield result
                assert not result.done()
            finally:
                self.go_on.set()


def other_is_answered(client: Client, round: int = 1) -> None:
    begun = time.monotonic()
    assert client.reply("report", signed(plans(name="other")(round))).reason == ""
    assert time.monotonic() - begun < 10


def test_another_federation_is_answered_while_one_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with people.client(tmp_path / "a") as client:
        client.join(invitation(name="other").encode())
        slow = Slow(monkeypatch, Guard, "check")
        with slow.meanwhile(lambda: client.join(invitation().encode())) as joining:
            other_is_answered(client)
        assert joining.result().fits == 3
        assert set(client.federations()) == {NAME, "other"}
        assert client.reply("report", signed(plans()(1))).reason == ""


def test_two_invitations_under_one_name_do_not_both_become_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with people.client(tmp_path / "a") as client, ThreadPoolExecutor(1) as pool:
        slow = Slow(monkeypatch, Guard, "check")
        with slow.meanwhile(lambda: client.join(invitation().encode())) as first:
            second = pool.submit(client.join, invitation(recipe({"clients.epsilon": 0.5})).encode())
            time.sleep(0.2)
            assert not second.done()
        assert not first.result().agreed
        with pytest.raises(Refused) as caught:
            second.result()
        assert caught.value.reason is Reason.OTHER_TERMS


def test_another_federation_is_answered_while_a_sum_takes_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = recipe({"split": {"kind": "iid", "clients": 4, "at_least": 0}, "method.channel": {"kind": "summed"}})
    with people.joined(tmp_path / "a", given) as client:
        client.join(invitation(name="other").encode())
        plan, method = plans(given)(1), wire(given).method
        server = SumServer(Summed.Spec().session(plan, method.tally(plan), 0, 4, "first"), range(4))

        def reply(step: str, message: bytes) -> Any:
            return client.reply(step, KEY.envelope(step, plan, people.terms(given).digest, [0], message))

        request = server.requests("keys")[0]
        begins = encoded_with_plan(request, plan.encode())
        slow = Slow(monkeypatch, Members, "answer")
        with slow.meanwhile(lambda: reply("keys", begins)) as joining:
            other_is_answered(client, 1)
        assert joining.result().reason == ""
        slow.go_on.clear()
        slow.begun.clear()
        with slow.meanwhile(lambda: reply("shares", request)) as sharing:
            other_is_answered(client, 2)
        assert sharing.result().reason == Reason.UNAVAILABLE.value  # no message of that step


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # sockets have short names
    yield folder
    shutil.rmtree(folder)


def asked(path: Path, request: Request) -> Response:
    with requests.socket.socket(requests.socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        requests.send(connection, request.encode())
        return Response.decode(requests.receive(connection))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_another_federation_is_answered_while_one_computes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, go_on, begun = Membership.report, threading.Event(), []

    def slow(self: Membership, *given: Any) -> Any:
        if self.federation == NAME:
            begun.append(self.federation)
            while not go_on.is_set():
                time.sleep(0.005)
        return real(self, *given)

    monkeypatch.setattr(Membership, "report", slow)
    own = limited({"seconds": 30}, federations=[NAME, "other", "wide"])
    with people.client(place / "a", own) as client, ThreadPoolExecutor(2) as pool:
        service = Service(client, place / "s")
        thread = threading.Thread(target=service.serve)
        thread.start()
        try:
            for name in (NAME, "other"):
                assert asked(place / "s", Request(What.JOIN, "", invitation(name=name).encode())).fine
            question = Request(What.STEP, "report", signed(plans()(1)))
            first, again = (pool.submit(asked, place / "s", question) for _ in range(2))
            until(lambda: len(begun) == 1)
            other = asked(place / "s", Request(What.STEP, "report", signed(plans(name="other")(1))))
            assert other.fine and len(body(other.payload)) == 82
            wide = asked(place / "s", Request(What.JOIN, "", invitation(hostile("wide"), name="wide").encode()))
            assert wide.reason == Reason.LIMIT_PARAMETERS.value  # joined automatically, were it not for that
            assert not first.done() and not again.done()
            go_on.set()
            assert first.result(20).payload == again.result(20).payload and first.result().fine
            assert begun == [NAME]  # asked twice, computed once
            assert client.standing.spent == pytest.approx(2 * COST)
        finally:
            go_on.set()
            service.stop()
            thread.join()


def test_a_budget_that_another_federation_spent_meanwhile_is_not_exceeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, nested = Membership.report, []
    with people.client(tmp_path / "a", limited(limit=1.5 * COST)) as client:
        for name in (NAME, "other"):
            client.join(invitation(name=name).encode())

        def meanwhile(self: Membership, *given: Any) -> Any:
            if self.federation == NAME:
                nested.append(client.reply("report", signed(plans(name="other")(1))))
            return real(self, *given)

        monkeypatch.setattr(Membership, "report", meanwhile)
        reply = client.reply("report", signed(plans()(1)))
        assert nested[0].reason == "" and reply.reason == Reason.BUDGET.value
        assert client.standing.spent == pytest.approx(COST)


# --- connections


def test_idle_connections_shut_nobody_out(place: Path) -> None:
    with people.joined(place / "a") as client, ExitStack() as silent:
        service = Service(client, place / "s")
        thread = threading.Thread(target=service.serve)
        thread.start()
        try:
            idle = [silent.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(CONNECTIONS)]
            for number, each in enumerate(idle):
                each.settimeout(10)
                each.connect(str(place / "s"))
                if number % 2:
                    each.sendall(b"\x10")  # a part of a frame
            for round in (1, 2, 3):
                assert asked(place / "s", Request(What.STEP, "report", signed(plans()(round)))).fine
            assert idle[0].recv(1) == b"", "the longest idle one made place"
            requests.send(idle[-2], Request(What.HELLO, "", b"").encode())
            assert Response.decode(requests.receive(idle[-2])).fine, "a later one is still served"
        finally:
            service.stop()
            thread.join()


def test_connections_that_are_being_answered_make_no_place() -> None:
    connections = Connections(2)
    with ExitStack() as held:
        pairs = [socket.socketpair() for _ in range(4)]
        for pair in pairs:
            for each in pair:
                held.enter_context(each)
        first, second, third, fourth = (pair[0] for pair in pairs)
        assert connections.admit(first) and connections.admit(second)
        connections.note(first, answering=True)
        assert connections.admit(third)
        with pytest.raises(requests.Closed):
            connections.note(second, answering=True)
        connections.note(third, answering=True)
        assert not connections.admit(fourth)
        connections.remove(first)
        assert connections.admit(fourth)
