"""`local_privacy` in a Flower app that knows nothing of it: randomised, recorded, or not at all."""

import json
import math
import random
import re
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

flwr = pytest.importorskip("flwr")

from flwr.app import (  # noqa: E402
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.clientapp.mod import LocalDpMod  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from sordino.errors import InvalidInput  # noqa: E402
from sordino.flower import decoded, local_privacy, stated  # noqa: E402
from sordino.flower.mod import UNCONTAINED, LocalPrivacy  # noqa: E402
from sordino.flower.parcel import RECORD, Parcel, fingerprint  # noqa: E402
from sordino.mechanisms import Box, ClipOnly, Gaussian, L1Ball, L2Ball, Laplace, PrivUnitG, TwoPoint  # noqa: E402
from sordino.privacy.guarantee import Adjacency, Budget, Infinite, Release  # noqa: E402
from sordino.privacy.ledger import Ledger, Released, cost  # noqa: E402
from tests.flower.nodes import archive  # noqa: E402
from tests.flower.template import client_app, server_app, task  # noqa: E402

TEMPLATE = Path(__file__).parent / "template"
WEIGHTS = {
    "fc.weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "fc.bias": np.zeros(2, np.float64),
    "norm.num_batches_tracked": np.array(7),
}
D = 8
POINT = TwoPoint(1.0, Box(0.0, 0.1))
RUN = 9


@pytest.fixture(autouse=True)
def _in_a_server_app():
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = RUN, 1, 1


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def asked(kind: str = "train", round: int = 1, arrays: dict[str, np.ndarray] = WEIGHTS, node: int = 5) -> Message:
    content = RecordDict({"arrays": record(arrays), "config": ConfigRecord({"server-round": round, "lr": 0.1})})
    return Message(content, dst_node_id=node, message_type=kind)


def context(node: int = 5, **settings: Any) -> Context:
    return Context(run_id=RUN, node_id=node, node_config=settings, state=RecordDict(), run_config={})


class App:
    """An app that adds 0.05 to every weight, or answers as it is told; it counts how often it is called."""

    def __init__(self, answer: Any = None) -> None:
        self.answer, self.calls = answer, 0

    def __call__(self, message: Message, context: Context) -> Message:
        self.calls += 1
        if self.answer is not None:
            return self.answer(message)
        return replied(message, {name: array + np.array(0.05, array.dtype) for name, array in WEIGHTS.items()})


def replied(message: Message, arrays: dict[str, np.ndarray], **metrics: Any) -> Message:
    told = {"train_loss": 0.25, "num-examples": 123, **metrics}
    return Message(RecordDict({"arrays": record(arrays), "metrics": MetricRecord(told)}), reply_to=message)


def made_ledger(path: Path, *consents: str, limit: float = 20.0, claimed: bool = False) -> Path:
    """A ledger with a proven budget, which unproven releases stand beside; or with one that counts claims."""
    with Ledger.create(path) as made:
        for what in (None, *consents) if claimed else consents:
            made.set_consent("records", what, granted=True)
        made.set_budget("records", Budget(limit, basis="claimed" if claimed else "proven"))
    return path


@pytest.fixture
def ledger(tmp_path):
    return made_ledger(tmp_path / "budget.db", "model update", "model weights")


@pytest.fixture
def claimed(tmp_path):
    return made_ledger(tmp_path / "claimed.db", claimed=True)


def released(path: Path) -> list[str]:
    with Ledger.open(path) as ledger:
        return [r.what for e in ledger.entries() if hasattr(e.event, "releases") for r in e.event.releases]


def spent(path: Path) -> float:
    with Ledger.open(path) as ledger:
        return ledger.standing("records").spent


# --- what leaves ------------------------------------------------------------------------------------------------------


def test_a_reply_is_one_flat_array_of_bytes_and_nothing_else(ledger):
    reply = local_privacy(POINT, ledger)(asked(), context(), App())
    assert list(reply.content) == [RECORD] and len(reply.content[RECORD]) == 1
    (array,) = (a.numpy() for a in reply.content[RECORD].values())
    assert array.dtype == np.uint8 and array.ndim == 1
    parcel = Parcel.of(reply.content)
    assert parcel.metrics == {} and len(parcel.body) == 1  # eight values, one bit each: the counter is not among them
    assert POINT.decode([parcel.body], D).values == D
    assert reply.metadata.reply_to_message_id == asked().metadata.message_id
    assert reply.metadata.src_node_id == 5


def test_the_release_is_in_the_ledger_with_the_bytes_that_left(ledger):
    reply = local_privacy(POINT, ledger)(asked(), context(), App())
    assert released(ledger) == ["model update"]
    with Ledger.open(ledger) as opened:
        assert (opened.standing("records").spent, opened.standing("records").unprotected) == (0, 1)
        (key,) = opened._book.reports
        assert opened.replay(key) == Parcel.of(reply.content).encode()
    assert (key.federation, key.round) == (f"flower {RUN}", 1)


@pytest.mark.parametrize("mechanism", [POINT, Gaussian.analytic(1.0, 1e-5, L2Ball(1.0), values=D)], ids=["bit", "sum"])
def test_nothing_is_proven_of_a_reply_that_the_app_can_keep_back(ledger, mechanism):
    """One record at which the app ended the node's process would leave the server without a reply."""
    mod = local_privacy(mechanism, ledger)
    assert isinstance(mod, LocalPrivacy) and not mod(asked(), context(), App()).has_error()
    with Ledger.open(ledger) as opened:
        ((release,),) = [e.event.releases for e in opened.entries() if isinstance(e.event, Released)]
    sides = (Adjacency.CLIENT, Adjacency.COORDINATE)
    assert {own.adjacency: own.loss for own in release.guarantees} == dict.fromkeys(sides, Infinite(UNCONTAINED))
    assert release.claimed == mechanism.claim(values=D)
    assert mod.of_mechanism(D) == tuple(mechanism.guarantee(side, values=D) for side in sides)
    assert all(not isinstance(own.loss, Infinite) for own in mod.of_mechanism(D))


def test_the_estimates_are_of_the_clipped_update(ledger):
    """Clipping alone, with the owner's consent: 0.05 is inside [-0.1, 0.1], and 3 is not."""
    plain = ClipOnly(Box(0.0, 0.1))
    moved = {**WEIGHTS, "fc.bias": WEIGHTS["fc.bias"] + np.array([0.05, 3.0])}
    reply = local_privacy(plain, ledger)(asked(), context(), App(lambda m: replied(m, moved)))
    body = Parcel.of(reply.content).body
    assert plain.decode([body], D).array[0] == pytest.approx([0, 0, 0, 0, 0, 0, 0.05, 0.1])


def test_weights_are_sent_as_they_are_if_asked_for(ledger):
    plain = ClipOnly(Box(0.0, 2.0))
    reply = local_privacy(plain, ledger, sends="weights")(asked(), context(), App())
    expected = np.concatenate([WEIGHTS["fc.weight"].reshape(-1), WEIGHTS["fc.bias"]]) + 0.05
    assert plain.decode([Parcel.of(reply.content).body], D).array[0] == pytest.approx(expected)
    assert released(ledger) == ["model weights"]


# --- the budget -------------------------------------------------------------------------------------------------------


def test_when_a_budget_of_claims_is_spent_nothing_leaves_and_nothing_is_trained(claimed):
    mod, app = local_privacy(POINT, claimed), App()
    replies = [mod(asked(round=n), context(), app) for n in range(1, 5)]
    assert [reply.has_error() for reply in replies] == [False, False, True, True]  # 8 + 8 of 20
    assert app.calls == 2 and released(claimed) == ["model update"] * 2
    reason = replies[2].error.reason
    assert "budget" in reason and not any(figure in reason for figure in ("16", "20", "8"))


def test_the_same_message_gets_the_same_bytes_and_costs_once(ledger):
    app = App()
    first = local_privacy(POINT, ledger)(asked(), context(), app)
    again = local_privacy(POINT, ledger)(asked(), context(), app)  # as after a crash: another process, the same file
    assert Parcel.of(first.content).encode() == Parcel.of(again.content).encode()
    assert app.calls == 1 and released(ledger) == ["model update"]


def test_a_message_that_comes_again_after_a_compaction_is_declined_and_costs_nothing(ledger):
    mod, app = local_privacy(POINT, ledger), App()
    for round in (1, 2):
        mod(asked(round=round), context(), app)
    with Ledger.open(ledger) as opened:
        assert opened.compact(timedelta(0)).reports == 1
    again = mod(asked(round=1), context(), app)
    assert again.has_error() and "no longer keeps that reply" in again.error.reason
    assert not mod(asked(round=2), context(), app).has_error()
    assert app.calls == 2 and released(ledger) == ["model update"] * 2


def test_a_change_in_the_message_is_a_new_release(claimed):
    mod = local_privacy(POINT, claimed)
    first = mod(asked(), context(), App())
    moved = {**WEIGHTS, "fc.bias": WEIGHTS["fc.bias"] + 1e-9}
    second = mod(asked(arrays=moved), context(), App(lambda m: replied(m, moved)))
    assert not first.has_error() and not second.has_error()
    assert released(claimed) == ["model update"] * 2 and spent(claimed) == 2 * D


def test_two_nodes_of_one_app_have_their_own_ledgers(tmp_path):
    for name in ("a", "b"):
        made_ledger(tmp_path / f"{name}.db", claimed=True, limit=10.0)
    mod = local_privacy(POINT, "nowhere.db")
    for node, name in ((5, "a"), (6, "b")):
        assert not mod(asked(node=node), context(node, ledger=str(tmp_path / f"{name}.db")), App()).has_error()
    assert released(tmp_path / "a.db") == released(tmp_path / "b.db") == ["model update"]


def test_nodes_that_share_a_ledger_never_get_each_others_report(ledger):
    mod = local_privacy(POINT, ledger)
    for node in (5, 6):
        mod(asked(node=node), context(node), App())
    assert released(ledger) == ["model update"] * 2


def test_without_a_ledger_nothing_leaves(tmp_path, caplog):
    app = App()
    reply = local_privacy(POINT, tmp_path / "none.db")(asked(), context(), app)
    assert reply.has_error() and "ledger" in reply.error.reason and app.calls == 0
    assert "sordino ledger budget" in caplog.text


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [(POINT, UNCONTAINED), (ClipOnly(Box(0.0, 0.1)), "no noise"), (PrivUnitG(0.01), "computed with floats")],
    ids=["two-point", "clip", "privunit-g"],
)
def test_the_model_needs_the_owners_consent_and_what_the_mechanism_lacks_is_said_first(
    tmp_path, caplog, mechanism, why
):
    app, path = App(), made_ledger(tmp_path / "b.db")
    reply = local_privacy(mechanism, path)(asked(), context(), app)
    assert reply.has_error() and app.calls == 0 and released(path) == []
    assert "--unproven 'model update'" in caplog.text and why in caplog.text


# --- what LocalDpMod stumbles over ------------------------------------------------------------------------------------


def theirs() -> LocalDpMod:
    return LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)


def test_an_update_of_zero_is_a_report_like_any_other(ledger):
    still = App(lambda m: replied(m, WEIGHTS))
    reals = {name: array for name, array in WEIGHTS.items() if array.dtype.kind == "f"}
    with pytest.raises(ZeroDivisionError):
        theirs()(asked(arrays=reals), context(), App(lambda m: replied(m, reals)))
    for mechanism in (POINT, Laplace(1.0, Box(0.0, 0.1)), Laplace(1.0, L1Ball(1.0))):
        reply = local_privacy(mechanism, ledger)(asked(round=len(released(ledger))), context(), still)
        body = Parcel.of(reply.content).body
        assert np.isfinite(mechanism.estimate(mechanism.decode([body], D))).all()


def test_integer_tensors_stay_where_they_are(ledger):
    moved = {**WEIGHTS, "norm.num_batches_tracked": np.array(19)}
    theirs_sent = theirs()(asked(), context(), App(lambda m: replied(m, moved))).content["arrays"]
    assert theirs_sent["norm.num_batches_tracked"].numpy() == 19  # neither clipped nor noised: as it was
    listed = {"counts": np.arange(3)}
    with pytest.raises(TypeError):
        theirs()(asked(arrays=listed), context(), App(lambda m: replied(m, {"counts": np.ones(3, np.int64)})))
    mod = local_privacy(POINT, ledger)
    reply = mod(asked(), context(), App(lambda m: replied(m, moved)))
    (found,) = aggregated([reply], POINT)
    assert found["norm.num_batches_tracked"].tolist() == 7 and found["norm.num_batches_tracked"].dtype == np.int64


def test_their_sample_counts_and_losses_leave_and_ours_do_not(ledger):
    reals = {name: array for name, array in WEIGHTS.items() if array.dtype.kind == "f"}
    moved = {name: array + array.dtype.type(0.05) for name, array in reals.items()}
    app = App(lambda m: replied(m, moved))
    told = theirs()(asked(arrays=reals), context(), app).content["metrics"]
    assert dict(told) == {"train_loss": 0.25, "num-examples": 123}
    ours = local_privacy(POINT, ledger)(asked(arrays=reals), context(), app)
    assert not ours.content.metric_records and Parcel.of(ours.content).metrics == {}


# --- apps that fail, and apps that say more than they should ----------------------------------------------------------


def raising(message: Message) -> Message:
    raise ValueError("row 17: John Doe, 1.80 m")


FAILURES = {
    "raises": raising,
    "ends its process": lambda m: sys.exit("row 17: John Doe"),
    "answers with an error": lambda m: Message(Error(1, "row 17: John Doe"), reply_to=m),
    "answers nothing": lambda m: None,
    "diverged": lambda m: replied(m, {**WEIGHTS, "fc.bias": np.array([np.nan, np.inf])}),
    "another shape": lambda m: replied(m, {**WEIGHTS, "fc.bias": np.zeros(3)}),
    "another name": lambda m: replied(m, {"fc.weight": WEIGHTS["fc.weight"]}),
    "one more": lambda m: replied(m, {**WEIGHTS, "rows": np.zeros(3)}),
    "whole numbers": lambda m: replied(m, {**WEIGHTS, "fc.bias": np.zeros(2, np.int64)}),
    "two records": lambda m: Message(RecordDict({"a": record(WEIGHTS), "b": record(WEIGHTS)}), reply_to=m),
    "no model": lambda m: Message(RecordDict({"metrics": MetricRecord({"train_loss": 1.0})}), reply_to=m),
    "rubbish": lambda m: Message(
        RecordDict({"arrays": ArrayRecord({n: Array("float32", (2,), "numpy.ndarray", b"x") for n in WEIGHTS})}),
        reply_to=m,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_training_that_fails_reports_no_change_and_says_nothing(ledger, name):
    with Ledger.open(ledger) as opened:
        opened.set_consent("records", "metric train_loss", granted=True)
    plain = ClipOnly(Box(0.0, 0.1))
    reply = local_privacy(plain, ledger, metrics=["train_loss"])(asked(), context(), App(FAILURES[name]))
    parcel = Parcel.of(reply.content)
    assert plain.decode([parcel.body], D).array.tolist() == [[0.0] * D]
    assert b"John" not in parcel.encode() and parcel.metrics == {}
    assert released(ledger) == ["model update", "metric train_loss"], "charged like any other"


@pytest.mark.parametrize("answer", [raising, lambda m: replied(m, WEIGHTS)], ids=["raises", "trains"])
def test_a_model_that_is_not_finite_is_declined_whatever_the_app_would_do(ledger, answer):
    """A change from it is a number only where training went well."""
    message = asked(arrays={**WEIGHTS, "fc.bias": np.array([np.inf, 0.0])})
    app = App(answer)
    assert local_privacy(POINT, ledger)(message, context(), app).has_error()
    assert (app.calls, released(ledger)) == (0, [])


def test_other_records_of_a_reply_stay_at_the_client(ledger):
    def chatty(message: Message) -> Message:
        said = {"arrays": record(WEIGHTS), "metrics": MetricRecord({"a": 1}), "more": ConfigRecord({"rows": "John"})}
        return Message(RecordDict(said), reply_to=message)

    assert list(local_privacy(POINT, ledger)(asked(), context(), App(chatty)).content) == [RECORD]


def test_what_goes_wrong_around_the_app_is_not_told_either(ledger, caplog):
    app = App()

    class Broken(dict):
        def get(self, *_: Any) -> Any:
            raise ZeroDivisionError("row 17")

    broken_context = context()
    broken_context.node_config = Broken()
    reply = local_privacy(POINT, ledger)(asked(), broken_context, app)
    assert reply.error.reason == "declined: this client could not answer" and app.calls == 0
    assert "ZeroDivisionError" in caplog.text
    broken = asked()
    broken.content["arrays"] = ArrayRecord({"fc": Array("float32", (2,), "numpy.ndarray", b"rubbish")})
    assert local_privacy(POINT, ledger)(broken, context(), app).has_error()
    assert released(ledger) == []


def test_models_of_half_and_double_precision_keep_their_types(ledger):
    arrays = {"half": np.ones(4, np.float16), "double": np.zeros((2, 2), np.float64)}
    far = TwoPoint(1.0, Box(0.0, 1e6))
    reply = local_privacy(far, ledger)(asked(arrays=arrays), context(), App(lambda m: replied(m, arrays)))
    (found,) = aggregated([reply], far, arrays)
    assert found["half"].dtype == np.float16 and (np.abs(found["half"]) == 65504).all()
    assert found["double"].dtype == np.float64 and np.abs(found["double"]).min() > 2e6


def test_a_query_is_not_answered(ledger):
    app = App()
    reply = local_privacy(POINT, ledger)(asked("query"), context(), app)
    assert reply.has_error() and app.calls == 0


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_a_metric_leaves_only_if_it_is_named_and_its_owner_agreed(ledger):
    mod = local_privacy(POINT, ledger, metrics=["train_loss"])
    assert mod(asked(), context(), App()).has_error() and released(ledger) == []
    with Ledger.open(ledger) as opened:
        opened.set_consent("records", "metric train_loss", granted=True)
    reply = mod(asked(), context(), App())
    assert Parcel.of(reply.content).metrics == {"train_loss": 0.25}
    assert released(ledger) == ["model update", "metric train_loss"]
    with Ledger.open(ledger) as opened:
        assert opened.standing("records").unprotected == 2


def evaluated(message: Message) -> Message:
    told = MetricRecord({"eval_loss": 0.5, "eval_acc": 0.75, "num-examples": 31})
    return Message(RecordDict({"metrics": told}), reply_to=message)


def test_of_an_evaluation_nothing_leaves_unless_it_is_named(ledger):
    reply = local_privacy(POINT, ledger)(asked("evaluate"), context(), App(evaluated))
    assert Parcel.of(reply.content) == Parcel() and released(ledger) == []
    with Ledger.open(ledger) as opened:
        opened.set_consent("records", "metric eval_acc", granted=True)
    reply = local_privacy(POINT, ledger, metrics=["eval_acc"])(asked("evaluate"), context(), App(evaluated))
    assert Parcel.of(reply.content).metrics == {"eval_acc": 0.75}
    assert released(ledger) == ["metric eval_acc"]
    failed = local_privacy(POINT, ledger, metrics=["eval_acc"])(asked("evaluate", 2), context(), App(raising))
    assert Parcel.of(failed.content) == Parcel()
    assert released(ledger) == ["metric eval_acc"] * 2, "that it is missing tells something"


METRIC_ANSWERS = {
    "the metric": lambda m: replied(m, WEIGHTS),
    "no number": lambda m: replied(m, WEIGHTS, train_loss=float("nan")),
    "numbers": lambda m: replied(m, WEIGHTS, train_loss=[0.5, 0.25]),
    "no metrics": lambda m: Message(RecordDict({"arrays": record(WEIGHTS)}), reply_to=m),
    "no reply": lambda m: SimpleNamespace(has_error=lambda: False),
    "raises": raising,
}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_whether_a_metric_comes_decides_neither_on_the_reply_nor_on_the_account(tmp_path, kind):
    """Without consent nothing is computed; with it, every reply has the same lines in the ledger."""
    lines = {"train": ["model update", "metric train_loss"], "evaluate": ["metric train_loss"]}[kind]
    for number, answer in enumerate(METRIC_ANSWERS.values()):
        path, app = made_ledger(tmp_path / f"{number}.db", "model update"), App(answer)
        mod = local_privacy(POINT, path, metrics=["train_loss"])
        reply = mod(asked(kind), context(), app)
        assert reply.has_error() and (app.calls, released(path)) == (0, [])
        with Ledger.open(path) as opened:
            opened.set_consent("records", "metric train_loss", granted=True)
        replies = [mod(asked(kind), context(), app) for _ in range(2)]
        assert (app.calls, released(path)) == (1, lines)
        parcels = [Parcel.of(reply.content) for reply in replies]
        assert parcels[0] == parcels[1] and bool(parcels[0].metrics) is (number == 0)
        with Ledger.open(path) as opened:
            assert opened.standing("records").unprotected == len(lines)


def test_what_is_missing_is_stated_too(ledger):
    with Ledger.open(ledger) as opened:
        for what in ("metric train_loss", "privacy statement"):
            opened.set_consent("records", what, granted=True)
    reply = local_privacy(POINT, ledger, metrics=["train_loss"])(asked(), context(), App(raising))
    parcel = Parcel.of(reply.content)
    assert parcel.metrics == {} and [each.what for each in parcel.terms] == ["model update", "metric train_loss"]


def test_a_metric_may_be_called_like_the_model(ledger):
    with Ledger.open(ledger) as opened:
        opened.set_consent("records", "metric model update", granted=True)
    mod = local_privacy(POINT, ledger, metrics=["model update"])
    assert not mod(asked(), context(), App()).has_error()
    assert released(ledger) == ["model update", "metric model update"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mechanism": TwoPoint([1.0, 2.0])}, {"mechanism": 3}, {"metrics": "loss"}, {"sends": "both"}, {"ledger": 3},
        {"metrics": [3]}, {"metrics": [""]}, {"metrics": ["loss\n"]}, {"metrics": map(str, range(64))},
    ],
    ids=[
        "many clients", "no mechanism", "one text", "both", "no ledger", "a number", "no name", "two lines",
        "more than a reply states",
    ],
)  # fmt: skip
def test_senseless_settings_are_refused_at_once(wrong):
    given = {"mechanism": POINT, "ledger": "budget.db", **wrong}
    with pytest.raises(InvalidInput):
        local_privacy(given.pop("mechanism"), given.pop("ledger"), **given)


# --- the server -------------------------------------------------------------------------------------------------------


class OneNode(Grid):
    """A grid whose nodes answer at once, in this process."""

    def __init__(self, app: Any, nodes: dict[int, dict[str, Any]], run_config: dict[str, Any] | None = None) -> None:
        self.app, self.nodes, self.run_config = app, nodes, run_config or {}
        self.replies: list[Message] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *given: Any, **more: Any) -> Message:
        raise AssertionError("nothing of ours asks a grid for this")

    def push_messages(self, messages: Any) -> Any:
        raise AssertionError("nothing of ours asks a grid for this")

    def pull_messages(self, message_ids: Any) -> Any:
        raise AssertionError("nothing of ours asks a grid for this")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Any:
        raise AssertionError("nothing of ours asks a grid for this")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        found = []
        for message in messages:
            node = message.metadata.dst_node_id
            ctx = Context(RUN, node, self.nodes[node], RecordDict(), self.run_config)
            found.append(self.app(message, ctx))
        self.replies += found
        return found


def aggregated(
    replies: list[Message], mechanism: Any, arrays: dict[str, np.ndarray] = WEIGHTS, **more: Any
) -> list[dict]:
    """What an inner strategy sees of these replies: every model by itself, and its metrics."""
    seen: list[Message] = []

    class Looking(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            seen.extend(replies)
            return super().aggregate_train(server_round, replies)

    nodes = {reply.metadata.src_node_id: {} for reply in replies}
    strategy = decoded(Looking(min_train_nodes=1, min_available_nodes=1), mechanism, **more)
    strategy.configure_train(1, record(arrays), ConfigRecord({"lr": 0.1}), OneNode(None, nodes))
    strategy.aggregate_train(1, replies)
    return [
        {"error": reply.error.reason}
        if reply.has_error()
        else {name: array.numpy() for name, array in reply.content["arrays"].items()}
        | {"metrics": dict(reply.content["metrics"])}
        for reply in seen
    ]


def test_the_server_sees_the_model_that_a_report_stands_for(ledger):
    reply = local_privacy(POINT, ledger)(asked(), context(), App())
    estimate = POINT.estimate(POINT.decode([Parcel.of(reply.content).body], D))[0]
    (found,) = aggregated([reply], POINT)
    assert found["fc.weight"] == pytest.approx(WEIGHTS["fc.weight"] + estimate[:6].reshape(2, 3), rel=1e-6)
    assert found["fc.bias"] == pytest.approx(estimate[6:], rel=1e-6)
    assert {n: a.dtype for n, a in found.items() if n != "metrics"} == {n: a.dtype for n, a in WEIGHTS.items()}
    assert found["metrics"] == {"num-examples": 1.0}


def test_clients_may_have_mechanisms_of_several_strengths(ledger):
    strong = TwoPoint(0.5, Box(0.0, 0.1))
    replies = [
        local_privacy(mechanism, ledger)(asked(node=node), context(node), App())
        for node, mechanism in ((5, POINT), (6, strong))
    ]
    assert not any("error" in found for found in aggregated(replies, [POINT, strong]))
    one, other = aggregated(replies, POINT)
    assert "error" not in one and "mechanism" in other["error"]


def test_a_variance_that_noise_made_negative_is_none(ledger):
    arrays = {"norm.running_var": np.full(64, 0.01, np.float32)}
    app = App(lambda m: replied(m, arrays))
    wide = TwoPoint(0.1, Box(0.0, 0.1))
    reply = local_privacy(wide, ledger)(asked(arrays=arrays), context(), app)
    (found,) = aggregated([reply], wide, arrays)
    assert found["norm.running_var"].min() == 0 and found["norm.running_var"].max() > 1


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda raw: raw + b"x", "bytes"),
        (lambda raw: raw[:-1], "bytes"),
        (lambda raw: b"XX" + raw[2:], "privacy mod"),
        (lambda raw: raw[:2] + b"\x07" + raw[3:], "version"),
        (lambda raw: raw[:5], "cut off"),
    ],
    ids=["longer", "shorter", "another", "newer", "cut"],
)  # fmt: skip
def test_a_forged_report_is_an_error_of_its_node_and_the_others_count(ledger, spoil, reason):
    mod = local_privacy(POINT, ledger)
    replies = [mod(asked(node=node), context(node), App()) for node in (5, 6)]
    raw = Parcel.of(replies[0].content).encode()
    replies[0].content[RECORD] = ArrayRecord({RECORD: Array(np.frombuffer(spoil(raw), np.uint8))})
    bad, good = aggregated(replies, POINT)
    assert reason in bad["error"] and "error" not in good


def test_an_archive_in_the_place_of_an_array_is_an_error_of_its_node(ledger):
    replies = [local_privacy(POINT, ledger)(asked(node=node), context(node), App()) for node in (5, 6)]
    replies[0].content[RECORD] = ArrayRecord({RECORD: Array("uint8", (4,), "numpy.ndarray", archive())})
    bad, good = aggregated(replies, POINT)
    assert "flat array" in bad["error"] and "error" not in good


def test_what_a_report_stands_for_is_not_the_clients_choice(ledger):
    """Read as a whole model, a report of updates would shift the mean by as much as the model is long."""
    reply = local_privacy(POINT, ledger, sends="weights")(asked(), context(), App())
    (refused,) = aggregated([reply], POINT)
    assert "'weights' where the server expects 'update'" in refused["error"]
    estimate = POINT.estimate(POINT.decode([Parcel.of(reply.content).body], D))[0]
    (found,) = aggregated([reply], POINT, sends="weights")
    assert found["fc.weight"] == pytest.approx(estimate[:6].reshape(2, 3), rel=1e-6)
    with pytest.raises(InvalidInput, match="sends"):
        decoded(FedAvg(), POINT, sends="losses")  # type: ignore[arg-type]


def test_a_client_without_the_mod_is_told_apart(ledger):
    (found,) = aggregated([App()(asked(), context())], POINT)
    assert "local_privacy" in found["error"]


@pytest.mark.parametrize("boast", [0, -3, 2**24 + 1], ids=str)
def test_a_boasted_weight_is_refused(boast):
    parcel = Parcel(POINT.encode(POINT.randomize(np.zeros(D, np.float32), zeros()).output)[0],
                    fingerprint(POINT, D), "update", {"num-examples": boast})  # fmt: skip
    (found,) = aggregated([Message(parcel.content(), reply_to=asked())], POINT)
    assert "examples" in found["error"]


def zeros():
    from sordino.randomness import Keystream

    return Keystream.simulation(1, [0], 0)


def test_weights_count_where_all_clients_let_them_go(ledger):
    with Ledger.open(ledger) as opened:
        opened.set_consent("records", "metric num-examples", granted=True)
    counted, silent = (local_privacy(POINT, ledger, metrics=names) for names in (["num-examples"], []))
    both = [mod(asked(node=node), context(node), App()) for node, mod in ((5, counted), (6, silent))]
    assert [found["metrics"] for found in aggregated(both, POINT)] == [{"num-examples": 1.0}] * 2
    assert [found["metrics"] for found in aggregated(both[:1], POINT)] == [{"num-examples": 123}]


@pytest.mark.parametrize("wrong", [[], [3], TwoPoint([1.0, 2.0])], ids=["none", "number", "many clients"])
def test_a_server_needs_the_clients_mechanisms(wrong):
    with pytest.raises(InvalidInput, match="mechanisms"):
        decoded(FedAvg(), wrong)
    with pytest.raises(InvalidInput, match="strategy"):
        decoded(None, POINT)  # type: ignore[arg-type]


def test_the_bytes_of_a_reply_are_written_down():
    """Another version of Sordino must read them."""
    raw = (
        b'SM\x03\x00i\x00\x00\x00{"mechanism":"00112233445566778899aabbccddeeff","metrics":{"num-examples":3},'
        b'"sends":"update","terms":[]}\x05'
    )
    parcel = Parcel(b"\x05", "00112233445566778899aabbccddeeff", "update", {"num-examples": 3})
    assert parcel.encode() == raw and Parcel.decode(raw) == parcel


@settings(max_examples=100, deadline=10_000)
@given(st.data())
def test_any_bytes_are_read_or_refused(data):
    whole = Parcel(b"\x05", "ab" * 16, "update", {"loss": 0.5}).encode()
    place = data.draw(st.integers(0, len(whole)))
    raw = data.draw(
        st.one_of(
            st.binary(max_size=80),
            st.binary(max_size=20).map(lambda new: whole[:place] + new + whole[place + 3 :]),
        )
    )
    with suppress(InvalidInput):
        assert Parcel.decode(raw).encode() == raw


@pytest.mark.parametrize("metrics", [{"a": float("nan")}, {"a": [1]}, {"a": True}, {"a": 2**70}, [1], "x"], ids=str)
def test_metrics_that_are_no_numbers_are_refused(metrics):
    text = json.dumps(
        {"mechanism": "", "metrics": metrics, "sends": "update", "terms": []}, separators=(",", ":")
    ).encode()
    with pytest.raises(InvalidInput):
        Parcel.decode(struct.pack("<2sBxI", b"SM", 3, len(text)) + text)


# --- the template -----------------------------------------------------------------------------------------------------

SETTINGS = {"num-server-rounds": 3, "fraction-train": 1.0, "local-epochs": 1, "lr": 0.1, "batch-size": 16}
CLIENT_LINE = "app = ClientApp()\n"
SERVER_LINE = 'strategy = FedAvg(fraction_train=run["fraction-train"])\n'


def changed(name: str, old: str, new: str, **names: Any) -> dict[str, Any]:
    """One of the template's files with one line changed, as a module's names."""
    text = (TEMPLATE / f"{name}.py").read_text()
    assert text.count(old) == 1
    space: dict[str, Any] = {"__name__": f"changed_{name}", **names}
    exec(compile(text.replace(old, new), name, "exec"), space)
    return space


def held(client: ClientApp, server: dict[str, Any] | None, nodes: dict[int, dict[str, Any]]) -> Any:
    random.seed(5)  # Flower samples nodes with it
    torch.manual_seed(5)
    grid = OneNode(client, nodes, SETTINGS)
    results = server_app.results if server is None else server["results"]
    app = server_app.app if server is None else server["app"]
    app(grid, Context(RUN, 0, {}, RecordDict(), SETTINGS))
    return results.pop(), grid


def nodes_with_ledgers(folder: Path, *consents: str, **budget: Any) -> dict[int, dict[str, Any]]:
    nodes = {}
    for k in range(3):
        path = made_ledger(folder / f"{k}.db", *consents, **budget)
        nodes[100 + k] = {"partition-id": k, "num-partitions": 3, "ledger": str(path)}
    return nodes


def private(mechanism: Any, **more: Any) -> tuple[ClientApp, dict[str, Any]]:
    """The template with the one line at the client and the one at the server."""
    mod = local_privacy(mechanism, "nowhere", **more)
    client = changed("client_app", CLIENT_LINE, "app = ClientApp(mods=[mod])\n", mod=mod)["app"]
    wrapped = 'strategy = decoded(FedAvg(fraction_train=run["fraction-train"]), mechanism)\n'
    server = changed("server_app", SERVER_LINE, wrapped, decoded=decoded, mechanism=mechanism)
    return client, server


def test_the_template_with_its_two_lines_computes_what_it_did_before(tmp_path):
    """With a mechanism that only clips, far away, and everybody's counts alike: the same model, up to rounding."""
    wide = ClipOnly(Box(0.0, 100.0))
    nodes = nodes_with_ledgers(tmp_path, "model update")
    plainly, _ = held(client_app.app, None, nodes)
    ours, _ = held(*private(wide), nodes)
    before, after = plainly.arrays.to_torch_state_dict(), ours.arrays.to_torch_state_dict()
    for name in before:
        if not name.endswith("num_batches_tracked"):  # averaged as a real number there, left alone here
            assert torch.allclose(before[name].float(), after[name].float(), atol=1e-5), name
    assert after["norm.num_batches_tracked"].dtype == torch.int64
    assert plainly.train_metrics_clientapp[1].keys() == {"train_loss"}
    assert not ours.train_metrics_clientapp.get(1)


def test_the_template_learns_under_a_whole_vectors_noise_and_every_round_is_in_the_ledgers(tmp_path):
    mechanism = Laplace(20.0, L1Ball(0.6))
    nodes = nodes_with_ledgers(tmp_path, "metric eval_acc", limit=50.0, claimed=True)
    result, grid = held(*private(mechanism, metrics=["eval_acc"]), nodes)
    assert all(released(Path(own["ledger"])).count("model update") == 2 for own in nodes.values())  # 40 of 50
    errors = [reply.error.reason for reply in grid.replies if reply.has_error()]
    assert len(errors) == 3 and all("budget" in reason for reason in errors)  # the third round
    assert {r: set(m) for r, m in result.evaluate_metrics_clientapp.items()} == {r: {"eval_acc"} for r in (1, 2, 3)}
    assert all(torch.isfinite(value).all() for value in result.arrays.to_torch_state_dict().values())


def test_a_server_without_its_line_fails_loudly(tmp_path):
    client, _ = private(ClipOnly(L2Ball(1.0)))
    nodes = nodes_with_ledgers(tmp_path, "model update")
    with pytest.raises(Exception, match="MetricRecord"):
        held(client, None, nodes)


# --- where the mod stands in the app ----------------------------------------------------------------------------------


def telling_app(app_wide: list[Any], of_train: list[Any] | None = None) -> ClientApp:
    """An app that tells its accuracy to whoever asks, and raises where it ends."""
    app = ClientApp(mods=app_wide)

    @app.train(mods=of_train)
    def train(message: Message, context: Context) -> Message:
        return replied(message, WEIGHTS)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return evaluated(message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return evaluated(message)

    return app


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_mod_of_train_alone_lets_nothing_out(ledger, kind, caplog):
    """Without the check, evaluation metrics would leave beside it: the mod is not called for them."""
    app = telling_app([], [local_privacy(POINT, ledger)])
    reply = app(message=asked(kind), context=context())
    assert reply.has_error() and "ClientApp(mods=[...])" in caplog.text and released(ledger) == []


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_mod_that_is_not_the_first_lets_nothing_out(ledger, kind):
    def adding(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        reply.content["rows"] = ConfigRecord({"rows": "John Doe"})
        return reply

    app = telling_app([adding, local_privacy(POINT, ledger)])
    assert app(asked(kind), context()).has_error() and released(ledger) == []


def test_a_mod_that_came_after_its_functions_lets_nothing_out(ledger):
    app = telling_app([])
    app._mods.append(local_privacy(POINT, ledger))
    assert app(asked("evaluate"), context()).has_error()


def test_a_mod_named_first_in_every_function_is_as_good(ledger):
    mod = local_privacy(POINT, ledger)
    app = ClientApp()
    app.train(mods=[mod])(lambda message, context: replied(message, WEIGHTS))
    assert not app(asked(), context()).has_error()
    app.evaluate(mods=[mod])(lambda message, context: evaluated(message))
    assert Parcel.of(app(asked("evaluate"), context()).content) == Parcel()
    app.query()(lambda message, context: evaluated(message))
    assert all(app(asked(kind, 2), context()).has_error() for kind in ("train", "evaluate", "query"))


def test_an_app_of_the_older_api_has_the_mod_in_one_place(ledger):
    app = ClientApp(client_fn=lambda context: None, mods=[local_privacy(POINT, ledger)])
    assert not app(asked("evaluate"), context()).has_error()  # whatever its client is: nothing of it leaves


def test_two_privacy_mods_are_one_too_many(ledger):
    both = [local_privacy(POINT, ledger), local_privacy(POINT, ledger, sends="weights")]
    assert telling_app(both)(asked(round=2), context()).has_error()
    assert telling_app(both[:1], both[1:])(asked(round=2), context()).has_error()


def test_the_first_of_the_apps_mods_sees_every_reply(ledger):
    app = telling_app([local_privacy(POINT, ledger)])
    assert Parcel.of(app(asked("evaluate"), context()).content) == Parcel()
    assert app(asked("query"), context()).has_error()
    assert not app(asked(), context()).has_error() and released(ledger) == ["model update"]


def test_apps_without_a_privacy_mod_answer_as_before():
    reply = telling_app([])(asked("evaluate"), context())
    assert reply.content["metrics"]["eval_acc"] == 0.75


def test_what_an_app_says_when_it_ends_is_not_sent(ledger):
    app = telling_app([local_privacy(POINT, ledger)])

    @app.lifespan()
    def lifespan(context: Context) -> Any:
        yield
        raise ValueError("row 17: John Doe")

    reply = app(asked(), context())
    assert reply.error.reason == "declined: this client could not answer"


def test_a_message_of_an_unknown_kind_is_not_quoted(ledger):
    reply = telling_app([local_privacy(POINT, ledger)])(asked("train.unknown"), context())
    assert reply.error.reason == "declined: this client could not answer"


# --- the server's statement -------------------------------------------------------------------------------------------


def test_the_server_states_what_the_parcels_say_and_nothing_without_consent(tmp_path):
    mechanism = Laplace(2.0, L1Ball(0.6))
    for consents, nodes_told in (([], 0), (["privacy statement"], 3)):
        folder = tmp_path / str(nodes_told)
        folder.mkdir()
        nodes = nodes_with_ledgers(folder, "model update", *consents)
        client, _ = private(mechanism)
        strategy = stated(decoded(FedAvg(), mechanism), folder / "statement.json")
        start = ArrayRecord(task.Net().state_dict())
        strategy.start(OneNode(client, nodes, SETTINGS), start, num_rounds=2, train_config=ConfigRecord({"lr": 0.1}))
        assert len(strategy.statement.rows) == (2 if nodes_told else 0)  # a client, and one value of it
        assert (folder / "statement.json").exists() is bool(nodes_told)
    (row,) = [row for row in strategy.statement.rows if row.adjacency is Adjacency.CLIENT]
    assert math.isinf(row.proven) and row.who.count == 3
    assert b"clinic" not in (folder / "statement.json").read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"type":"Infinite"', b'"type":"Pony"'), (b'"basis":"', b'"basis":0,"x":"'), (b'"what":"', b'"what":"\\u001b')],
    ids=["unknown", "another form", "escape"],
)
def test_terms_that_cannot_be_are_nobodys_and_the_reply_counts_as_any_forged_one(tmp_path, old, new):
    """A node's word about itself must not end the run for the others."""
    mechanism = Laplace(2.0, L1Ball(0.6))
    nodes_with_ledgers(tmp_path, "model update", "privacy statement")
    mods = {node: local_privacy(mechanism, tmp_path / f"{node - 100}.db") for node in (100, 101)}
    good, bad = (mod(asked(node=node), context(node), App()) for node, mod in mods.items())
    raw = Parcel.of(bad.content).encode()
    size = struct.unpack_from("<I", raw, 4)[0]
    header = raw[8 : 8 + size]
    assert old in header
    text = header.replace(old, new, 1)
    bad.content[RECORD] = ArrayRecord(
        {RECORD: Array(np.frombuffer(raw[:4] + struct.pack("<I", len(text)) + text + raw[8 + size :], np.uint8))}
    )
    strategy = stated(decoded(FedAvg(min_train_nodes=1), mechanism), tmp_path / "statement.json")
    strategy.configure_train(1, record(WEIGHTS), ConfigRecord({}), OneNode(None, {100: {}, 101: {}}))
    strategy.aggregate_train(1, [good, bad])
    assert {row.who.names for row in strategy.statement.rows} == {("node 100",)}
    assert len(strategy.statement.caveats) == 2


def test_an_app_that_names_the_data_otherwise_has_no_other_budget(tmp_path):
    path, app = tmp_path / "b.db", App()
    cost = spent_once(tmp_path / "once.db")
    with Ledger.create(path) as made:
        for name in ("records", "ward seven"):
            made.set_consent(name, None, granted=True)
            made.set_budget(name, Budget(1.5 * cost, basis="claimed"))
    local_privacy(POINT, path)(asked(), context(), app)
    reply = local_privacy(POINT, path, dataset="ward seven")(asked(round=2), context(), app)
    assert reply.has_error() and app.calls == 1, "refused before any data is touched"
    with Ledger.open(path) as ledger:
        assert ledger.standing("ward seven").spent == ledger.standing("records").spent == cost
        ledger.set_disjoint("ward seven", "records", declared=True)
        ledger.set_budget("ward seven", Budget(2.5 * cost, basis="claimed"))
    reply = local_privacy(POINT, path, dataset="ward seven")(asked(round=2), context(), app)
    assert not reply.has_error() and spent(path) == cost


def spent_once(path: Path) -> float:
    made_ledger(path, limit=1e6, claimed=True)
    local_privacy(POINT, path)(asked(), context(), App())
    return spent(path)


def test_the_owners_name_for_the_data_does_not_leave_with_the_terms(tmp_path):
    path = tmp_path / "b.db"
    with Ledger.create(path) as made:
        made.set_budget("ward seven", Budget(20.0))
        for what in ("model update", "privacy statement"):
            made.set_consent("ward seven", what, granted=True)
    reply = local_privacy(POINT, path, dataset="ward seven")(asked(), context(), App())
    raw = Parcel.of(reply.content).encode()
    assert b"ward" not in raw and Parcel.decode(raw).terms[0].what == "model update"
    assert released(path) == ["model update", "privacy statement"]


# --- the page ---------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "flower-mod.md").read_text()


def test_the_lines_that_the_page_shows_build_what_it_says():
    lines = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2])
    space: dict[str, Any] = {"ClientApp": ClientApp, "FedAvg": FedAvg}
    exec(compile(lines, "docs/flower-mod.md", "exec"), space)
    (mod,) = space["app"]._mods
    assert mod.mechanism.epsilon == 4.0 and space["strategy"]._mechanisms[0].epsilon == 4.0


def test_the_price_that_the_page_states_is_the_mechanisms():
    mod = local_privacy(TwoPoint(4.0, Box(0.0, 0.02)), "budgets")
    assert isinstance(mod, LocalPrivacy)
    upload, _ = mod.of_mechanism(62_006)
    assert 62_006 * 4 - 1 < cost(Budget(1e9), Release("a", "b", "c", (upload,))) <= 62_006 * 4
    assert "248,024" in PAGE


def test_of_an_app_of_the_older_api_nothing_more_leaves(ledger):
    content = RecordDict({"fitins.parameters": record(WEIGHTS), "fitins.config": ConfigRecord({"lr": 0.1})})
    message = Message(content, dst_node_id=5, message_type="train")

    def older(asked: Message) -> Message:
        said = {
            "fitres.parameters": record(WEIGHTS), "fitres.num_examples": MetricRecord({"num_examples": 3}),
            "fitres.metrics": ConfigRecord({"rows": "John"}),
        }  # fmt: skip
        return Message(RecordDict(said), reply_to=asked)

    reply = local_privacy(POINT, ledger)(message, context(), App(older))
    assert list(reply.content) == [RECORD] and Parcel.of(reply.content).metrics == {}
