"""`record_privacy`: an app of the quickstart's shape is private for each record by four lines, and fetches nothing."""

import json
import logging
import math
import re
import shlex
import sys
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from sordino.errors import InvalidInput
from sordino.flower import private_training, record_privacy, stated
from sordino.flower.record_mod import UNCONTAINED, UNDECLARED, RecordPrivacy
from sordino.methods.silo_dp import WHAT
from sordino.privacy.accountant import Account
from sordino.privacy.guarantee import Adjacency, Budget, Destination, Guarantee, Infinite, Release
from sordino.privacy.ledger import Ledger, Released, ReportKey
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from tests.client import people
from tests.flower.test_mod import OneNode

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from sordino.cli import app as cli

RUN = 9
KEY = ReportKey("records", "flower 9", 1, b"\1" * 32)
BY_RECORD = Adjacency.RECORD_ADD_REMOVE
PAGE = (Path(__file__).parents[2] / "docs" / "flower-records.md").read_text()
QUICKSTART = Path(__file__).parent / "quickstart.py"
OPTIMIZER = "    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)\n"
SETTINGS: dict[str, Any] = {
    "shape": (64,), "announced_size": 40, "sampling_rate": 0.25, "steps": 3, "noise_multiplier": 1.25,
    "per_record": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch, tmp_path):
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = RUN, 1, 1
    monkeypatch.setenv("SORDINO_LEDGERS", str(tmp_path))


def admitted(guarantees: tuple[Guarantee, ...], limit: float) -> int:
    """How many releases of this kind a budget pays for."""
    account, count = Account.opening(Budget(limit, 1e-5, adjacency=BY_RECORD)), 0
    while account.permits:
        count += 1
        account = account.after(Release(str(count), "records", WHAT, guarantees), Destination("flower"))
    return count - 1


def ledger_at(path: Path, limit: float = 1e3, *consents: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    with Ledger.create(path) as made:
        made.set_budget("records", Budget(limit, 1e-5, adjacency=BY_RECORD))
        for what in (WHAT, *consents):
            made.set_consent("records", what, granted=True)
    return path


def released(path: Path) -> list[Release]:
    with Ledger.open(path) as ledger:
        return [each for e in ledger.entries() if isinstance(e.event, Released) for each in e.event.releases]


def asked(net: nn.Module, round: int = 1, kind: str = "train", node: int = 5) -> Message:
    config = ConfigRecord({"server-round": round, "lr": 0.5})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "config": config})
    return Message(content, dst_node_id=node, message_type=kind)


def at(node: int = 5, partition: int = 0) -> Context:
    return Context(RUN, node, {"partition-id": partition}, RecordDict(), {})


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(64, 10)


def digits(count: int = 40, scale: float = 1.0) -> DataLoader:
    draw = torch.Generator().manual_seed(1)
    x = torch.rand((count, 64), generator=draw) * scale
    return DataLoader(TensorDataset(x, torch.arange(count) % 10), batch_size=10)


@dataclass(frozen=True)
class Bounded(RecordPrivacy):
    """The mod with the loss of its sums, to see what a server states of finite losses."""

    def release(self, key: ReportKey, values: int) -> Release:
        return replace(super().release(key, values), guarantees=self.of_sums(values))


def app_with(
    train: Callable[[nn.Module], Any],
    model: Callable[[], nn.Module] = linear,
    ledger: Any = "b.db",
    kind: type[RecordPrivacy] = RecordPrivacy,
    **changes: Any,
) -> ClientApp:
    """An app that trains a model by `train`, and tells everything it knows."""
    app = ClientApp(mods=[kind(**vars(record_privacy(ledger, **{**SETTINGS, **changes})))])

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = train(net)
        told = MetricRecord({"train_loss": float(loss or 0), "num-examples": 40})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": told}), reply_to=message)

    return app


def privately(net: nn.Module, loader: Any = None, lr: float = 1.0) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    return private_training(net, optimizer, digits() if loader is None else loader)


def change(reply: Message, net: nn.Module) -> np.ndarray:
    before, after = net.state_dict(), reply.content["arrays"].to_torch_state_dict()
    return np.concatenate([(after[name] - before[name]).numpy().reshape(-1) for name in before])


def private_quickstart() -> SimpleNamespace:
    """The quickstart with the four lines that the page prints, in the two files that it has: each imports its own."""
    imports, shape, rest = QUICKSTART.read_text().partition("SHAPE = ")
    task, plain_app, client_app = rest.partition("app = ClientApp()\n")
    (app_file, app_lines), (task_file, task_lines) = re.findall(r"```python\n# (\w+\.py).*?\n(.*?)```", PAGE, re.DOTALL)
    assert (app_file, task_file) == ("client_app.py", "task.py") and plain_app and task.count(OPTIMIZER) == 1
    beside_imports, in_train = task_lines.split("\n\n")
    task = task.replace(OPTIMIZER, OPTIMIZER + textwrap.indent(in_train, "    "))
    own: dict[str, Any] = {"__name__": "task"}
    exec(compile(f"{imports}{beside_imports}\n{shape}{task}", "task", "exec"), own)
    of_task = {name: own[name] for name in ("Images", "Net", "load_data", "train_net")}
    space: dict[str, Any] = {"__name__": "client_app", **of_task}
    exec(compile(f"{imports}{app_lines}{client_app}", "client_app", "exec"), space)
    return SimpleNamespace(**space)


quickstart = private_quickstart()


# --- the quickstart ---------------------------------------------------------------------------------------------------


def test_four_lines_make_the_quickstart_private_and_plain_fedavg_reads_it(tmp_path):
    """Two nodes, three rounds, a server without a line of ours."""
    for number in range(2):
        ledger_at(tmp_path / "record-budgets" / f"{number}.db")
    nodes = {100 + number: {"partition-id": number} for number in range(2)}
    grid = OneNode(quickstart.app, nodes)
    config = ConfigRecord({"lr": 0.1})
    start = ArrayRecord(quickstart.Net().state_dict())
    result = FedAvg().start(grid, start, num_rounds=3, train_config=config)
    answers = [reply for reply in grid.replies if "train" in reply.metadata.message_type]
    assert [reply.has_error() for reply in answers] == [False] * 6
    for reply in answers:
        assert dict(reply.content["metrics"]) == {"num-examples": 1}  # neither 60 nor the loss
    assert [each.what for each in released(tmp_path / "record-budgets" / "0.db")] == [WHAT] * 3
    assert not torch.equal(result.arrays.to_torch_state_dict()["fc2.bias"], start.to_torch_state_dict()["fc2.bias"])


def test_the_pages_commands_make_ledgers_that_let_the_pages_app_answer(tmp_path, monkeypatch):
    commands = re.findall(r"^\$ sordino (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        words = [re.sub("^~", str(tmp_path), word) for word in shlex.split(command)]
        assert CliRunner().invoke(cli, words).exit_code == 0
    monkeypatch.setenv("SORDINO_LEDGERS", str(tmp_path / ".sordino" / "ledgers"))
    for number in range(2):
        assert not quickstart.app(asked(quickstart.Net()), at(partition=number)).has_error()
        (release,) = released(tmp_path / ".sordino" / "ledgers" / "record-budgets" / f"{number}.db")
        assert release.what == WHAT


def test_the_quickstart_moves_by_the_gradients_of_its_records(tmp_path):
    """One step over all records, none of them clipped, next to no noise: the step of plain SGD, up to that noise."""
    (mod,) = quickstart.app._mods
    quiet = replace(mod.training, noise_multiplier=1e-5, sampling_rate=1.0, expected_batch=60.0, steps=1, clip=50.0)
    ledger_at(tmp_path / "record-budgets" / "0.db", 1e3, WHAT)
    app = ClientApp(mods=[replace(mod, training=quiet)])
    app.train()(quickstart.train)
    net, images = quickstart.Net(), quickstart.Images(0)
    moved = change(app(asked(net), at()), net)
    nn.functional.cross_entropy(net(images.images), images.labels).backward()
    expected = np.concatenate([-0.5 * p.grad.numpy().reshape(-1) for p in net.parameters()])
    assert np.abs(moved - expected).max() < 1e-4 < 0.01 < np.abs(expected).max()


# --- the account ------------------------------------------------------------------------------------------------------


def test_the_sums_reveal_what_silo_dp_does_and_a_reply_is_not_bounded_by_it(tmp_path):
    """The app is own code: a record at which it ended the node's process would leave the server without a reply."""
    tables = people.recipe().to_dict()
    method = {
        "name": "silo-dp", "clip": 1.0, "sampling_rate": 0.25, "steps": 3, "noise_multiplier": 1.25,
        "announced_size": 40,
    }  # fmt: skip
    tables["method"], tables["training"] = method, {"optimizer": {"name": "sgd", "lr": 1.0}}
    tables["clients"].pop("epsilon", None)
    silo = wire(Recipe.from_dict(tables)).method
    ((theirs,),) = silo.releases(silo.plan(silo.init(), "flower"))
    path = ledger_at(tmp_path / "b.db")
    assert not app_with(privately)(asked(linear()), at()).has_error()
    (ours,) = released(path)
    mod = record_privacy("b.db", **SETTINGS)
    assert isinstance(mod, RecordPrivacy) and mod.of_sums(650) == theirs.guarantees and ours.what == theirs.what
    assert [each.loss for each in ours.guarantees] == [Infinite(UNCONTAINED)] * 2


def test_an_epsilon_for_all_rounds_gives_the_noise(tmp_path):
    aimed = record_privacy("b.db", **{**SETTINGS, "noise_multiplier": None, "epsilon": 2.0, "rounds": 5})
    assert admitted(aimed.of_sums(650), 2.0) == 5


def test_an_owner_who_does_not_consent_declines_before_any_record_is_touched(tmp_path):
    """The app is not even called."""
    calls = []
    path = ledger_at(tmp_path / "b.db")
    app = app_with(lambda net: (calls.append(1), privately(net))[1])
    replies = [app(asked(linear()), at())]
    with Ledger.open(path) as ledger:
        ledger.set_consent("records", WHAT, granted=False)
    replies.append(app(asked(linear(), round=2), at()))
    assert [reply.has_error() for reply in replies] == [False, True] and len(calls) == 1
    assert len(released(path)) == 1


def test_the_same_message_gets_the_same_bytes(tmp_path):
    ledger_at(tmp_path / "b.db")
    calls = []
    app = app_with(lambda net: (calls.append(1), privately(net))[1])
    first, again = (app(asked(linear()), at()) for _ in range(2))
    assert len(calls) == 1
    for name, array in first.content["arrays"].items():
        assert array.data == again.content["arrays"][name].data
    other = app(asked(linear(), round=2), at())
    assert other.content["arrays"]["weight"].data != first.content["arrays"]["weight"].data


def test_what_nobody_declared_is_named_in_the_ledger(tmp_path):
    path = ledger_at(tmp_path / "b.db")
    assert not app_with(privately, per_record=False)(asked(linear()), at()).has_error()
    assert {each.loss for each in released(path)[0].guarantees} == {Infinite(UNDECLARED)}


# --- the noise --------------------------------------------------------------------------------------------------------


def test_the_noise_has_the_size_that_the_guarantee_needs(tmp_path):
    """Without records, plain SGD with learning rate 1 sends the sum of `steps` noises: 650 values of known spread.

    Their squares' mean is within 30 % of its expectation but once in a million runs (chi-squared, 650 degrees of
    freedom); half the noise would make it a quarter.
    """
    ledger_at(tmp_path / "b.db")
    empty = DataLoader(TensorDataset(torch.zeros(0, 64), torch.zeros(0, dtype=torch.int64)))
    net = linear()
    moved = change(app_with(lambda own: privately(own, empty))(asked(net), at()), net)
    batch = SETTINGS["sampling_rate"] * SETTINGS["announced_size"]
    expected = SETTINGS["steps"] * (SETTINGS["noise_multiplier"] * 1.0 / batch) ** 2
    assert moved.size == 650 and 0.7 < (moved**2).mean() / expected < 1.3


def test_one_record_moves_a_sum_by_its_clip_at_most(tmp_path):
    """Rate 1, one step, next to no noise: a record with a huge gradient moves the model by clip / expected batch."""
    ledger_at(tmp_path / "b.db", 1e3, WHAT)
    net, x = linear(), torch.full((1, 64), 1e3)
    one = DataLoader(TensorDataset(x, net(x).argmin(1)))
    quiet = {"noise_multiplier": 1e-4, "steps": 1, "sampling_rate": 1.0, "announced_size": 1, "clip": 0.5}
    moved = change(app_with(lambda own: privately(own, one), **quiet)(asked(net), at()), net)
    assert 0.45 < np.linalg.norm(moved) <= 0.5 * 1.01


def test_every_record_is_sampled_by_chance(tmp_path):
    """60 records at rate 0.2, four steps: 48 on average, within 6 standard deviations."""
    ledger_at(tmp_path / "b.db")
    touched = []

    class Counting(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            touched.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Counting(torch.rand(60, 64), torch.zeros(60, dtype=torch.int64)), batch_size=10)
    app_with(lambda net: privately(net, loader), sampling_rate=0.2, steps=4)(asked(linear()), at())
    assert abs(len(touched) - 48) < 6 * math.sqrt(48 * 0.8) and len(set(touched)) < len(touched)


# --- what does not leave ----------------------------------------------------------------------------------------------


def test_each_record_is_loaded_in_a_process_as_no_other_left_it(tmp_path):
    """Its data set may compute, and a record may make it change how everything is computed."""
    noticed, before = set(), (torch.get_num_threads(), torch.get_default_dtype())

    class Leaving(TensorDataset):
        def __getitem__(self, index):
            noticed.add((torch.get_num_threads(), torch.get_default_dtype()))
            torch.set_num_threads(2)
            torch.set_default_dtype(torch.float64)
            return super().__getitem__(index)

    loader = DataLoader(Leaving(*digits().dataset.tensors), batch_size=10)
    app_with(lambda net: privately(net, loader), ledger=ledger_at(tmp_path / "own.db"), sampling_rate=1.0)(
        asked(linear()), at()
    )
    assert noticed == {(1, torch.float32)}
    assert (torch.get_num_threads(), torch.get_default_dtype()) == before


def test_what_the_app_answers_is_not_looked_at(tmp_path):
    """Raw records in the place of the model stay where they are."""
    ledger_at(tmp_path / "b.db")

    def leak(net: nn.Module) -> None:
        privately(net)
        with torch.no_grad():
            net.weight[0] = 12345.0

    reply = app_with(leak)(asked(linear()), at())
    assert reply.content["arrays"]["weight"].numpy().max() < 100


def test_what_the_app_trained_before_is_not_where_it_starts(tmp_path):
    ledger_at(tmp_path / "b.db")

    def cheat(net: nn.Module) -> None:
        with torch.no_grad():
            net.weight.fill_(777.0)
        privately(net)

    assert app_with(cheat)(asked(linear()), at()).content["arrays"]["weight"].numpy().max() < 100


def test_metrics_leave_if_they_are_named_and_agreed_to(tmp_path):
    path = ledger_at(tmp_path / "b.db", 1e3, "metric num-examples")
    reply = app_with(privately, metrics=["num-examples"])(asked(linear()), at())
    assert dict(reply.content["metrics"]) == {"num-examples": 40}
    assert [each.what for each in released(path)] == [WHAT, "metric num-examples"]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_metric_without_consent_lets_nothing_be_computed_and_a_missing_one_is_counted(tmp_path, kind):
    """Otherwise the server would learn at no charge whether the app failed."""
    path, calls = ledger_at(tmp_path / "b.db"), []

    def train(net: nn.Module) -> float:
        calls.append(privately(net))
        raise ValueError("row 17: John Doe")

    app = app_with(train, metrics=["num-examples"])

    @app.evaluate()
    def score(message: Message, context: Context) -> Message:
        return train(linear())  # type: ignore[return-value]

    assert app(asked(linear(), kind=kind), at()).has_error()
    assert (calls, released(path)) == ([], [])
    with Ledger.open(path) as ledger:
        ledger.set_consent("records", "metric num-examples", granted=True)
    assert dict(app(asked(linear(), kind=kind), at()).content["metrics"]) == {"num-examples": 1}
    whats = [each.what for each in released(path)]
    assert whats == [*([WHAT] if kind == "train" else []), "metric num-examples"]


def test_records_that_cannot_be_computed_add_nothing_and_the_server_sees_no_difference(tmp_path, caplog):
    ledger_at(tmp_path / "b.db")

    class Damaged(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            if index % 3 == 0:
                raise ValueError("row 17: John Doe")
            return (torch.rand(63), 1) if index % 3 == 1 else (torch.rand(64), 999)

    loader = DataLoader(Damaged(torch.zeros(40, 64)))
    with caplog.at_level(logging.WARNING):
        reply = app_with(lambda net: privately(net, loader), sampling_rate=1.0)(asked(linear()), at())
    assert not reply.has_error() and "120 of 120" in caplog.text
    assert list(reply.content) == ["metrics", "arrays"] and dict(reply.content["metrics"]) == {"num-examples": 1}


def test_data_that_cannot_be_opened_are_like_none(tmp_path, caplog):
    path = ledger_at(tmp_path / "b.db")

    def opened() -> DataLoader:
        raise FileNotFoundError("/wards/seven/John Doe.csv")

    assert not app_with(lambda net: privately(net, opened))(asked(linear()), at()).has_error()
    assert "FileNotFoundError" in caplog.text and len(released(path)) == 1
    net, counted = linear(), app_with(lambda net: privately(net, digits), noise_multiplier=0.5, steps=1)
    assert np.abs(change(counted(asked(net, 2), at()), net)).max() > 0


def test_an_app_that_fails_after_training_still_answers(tmp_path):
    ledger_at(tmp_path / "b.db")

    def fail(net: nn.Module) -> None:
        privately(net)
        raise ValueError("row 17: John Doe")

    assert not app_with(fail)(asked(linear()), at()).has_error()


def test_what_the_app_does_to_the_message_is_not_sent(tmp_path):
    """A reply is made of the server's arrays as they came: names, shapes and types too."""
    ledger_at(tmp_path / "b.db")
    app = ClientApp(mods=[record_privacy("b.db", **SETTINGS)])

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        net = linear()
        privately(net)
        message.content["arrays"]["John Doe"] = Array(np.arange(3.0))
        message.content["rows"] = ConfigRecord({"rows": "John Doe"})
        message.content["arrays"]["weight"] = Array(np.full((10, 64), 12345.0, np.float32))
        return Message(message.content, reply_to=message)

    reply = app(asked(linear()), at())
    assert list(reply.content) == ["metrics", "arrays"] and list(reply.content["arrays"]) == ["weight", "bias"]
    assert reply.content["arrays"]["weight"].numpy().max() < 100


def test_an_app_that_ends_its_process_does_not_end_the_reply(tmp_path):
    ledger_at(tmp_path / "b.db")

    def leave(net: nn.Module) -> None:
        privately(net)
        sys.exit("row 17: John Doe")

    assert not app_with(leave)(asked(linear()), at()).has_error()


def test_the_replies_of_a_node_without_records_look_like_any_other(tmp_path):
    ledger_at(tmp_path / "b.db")
    empty = DataLoader(TensorDataset(torch.zeros(0, 64), torch.zeros(0, dtype=torch.int64)))
    replies = [
        app_with(lambda net, own=own: privately(net, own))(asked(linear(), round), at())
        for round, own in ((1, empty), (2, digits()))
    ]
    forms = [
        {name: (array.dtype, array.shape, len(array.data)) for name, array in reply.content["arrays"].items()}
        for reply in replies
    ]
    assert forms[0] == forms[1] and replies[0].content["metrics"] == replies[1].content["metrics"]


# --- what is refused --------------------------------------------------------------------------------------------------


class Batched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(64, 10), nn.BatchNorm1d(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc(x))


class Counting(nn.Linear):
    """Remembers how many records it has seen."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.seen = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1.0
        return super().forward(x) * self.seen


BAD_MODELS = {
    "batch norm": (Batched, "GroupNorm"),
    "dropout": (lambda: nn.Sequential(nn.Dropout(), nn.Linear(64, 10)), "dropout"),
    "memory": (Counting, "changes after another record"),
    "another shape": (lambda: nn.Linear(63, 10), "(64,)"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_models_that_mix_records_are_refused_with_the_remedy(tmp_path, caplog, name):
    model, remedy = BAD_MODELS[name]
    path = ledger_at(tmp_path / "b.db")
    touched = []

    class Seen(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            touched.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Seen(torch.zeros(40, 64), torch.zeros(40, dtype=torch.int64)))
    reply = app_with(lambda net: privately(net, loader), model)(asked(model()), at())
    assert reply.has_error() and remedy in caplog.text and not touched and released(path) == []


def test_group_norm_and_losses_of_numbers_are_fine(tmp_path):
    ledger_at(tmp_path / "b.db")

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.GroupNorm(2, 8), nn.Linear(8, 1))

    loader = DataLoader(TensorDataset(torch.rand(40, 64), torch.rand(40, 1)))

    def train(net: nn.Module) -> float:
        return private_training(net, torch.optim.Adam(net.parameters()), loader, nn.functional.mse_loss)

    assert not app_with(train, model)(asked(model()), at()).has_error()


def used(net: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return optimizer


WRONG_CALLS = {
    "never": (lambda net: 0.0, "without private_training"),
    "other tensors": (
        lambda net: private_training(net, torch.optim.SGD([net.bias], lr=1.0), digits()),
        "model.parameters()",
    ),
    "a used optimiser": (lambda net: private_training(net, used(net), digits()), "make a new one"),
    "another model": (lambda net: privately(nn.Linear(64, 11)), "arrays of the server's message"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_training_that_is_not_private_does_not_leave(tmp_path, caplog, name):
    train, remedy = WRONG_CALLS[name]
    path = ledger_at(tmp_path / "b.db")
    reply = app_with(train)(asked(linear()), at())
    assert reply.has_error() and remedy in caplog.text and released(path) == []


def test_a_second_call_is_not_paid_for(tmp_path, caplog):
    path = ledger_at(tmp_path / "b.db")
    reply = app_with(lambda net: (privately(net), privately(net))[1])(asked(linear()), at())
    assert not reply.has_error() and "twice" in caplog.text and len(released(path)) == 1


def test_without_the_mod_nothing_is_trained():
    with pytest.raises(InvalidInput, match="record_privacy"):
        privately(linear())


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": None}, {"epsilon": 1.0}, {"noise_multiplier": None, "epsilon": 1.0}, {"steps": 0},
        {"sampling_rate": 0.0}, {"announced_size": 0}, {"noise_multiplier": -1.0}, {"metrics": "loss"},
    ],
    ids=str,
)  # fmt: skip
def test_senseless_settings_are_refused_at_once(wrong):
    with pytest.raises(InvalidInput):
        record_privacy("b.db", **{**SETTINGS, **wrong})


@pytest.mark.parametrize("failure", [SystemExit, MemoryError, BaseException])
def test_a_record_at_which_the_app_raises_anything_adds_nothing(tmp_path, failure):
    class Exits(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise failure(1)
            return super().__getitem__(index)

    ledger_at(tmp_path / "b.db")
    app = app_with(lambda net: privately(net, DataLoader(Exits(*digits().dataset.tensors))), sampling_rate=1.0)
    reply = app(asked(linear()), at())
    assert not reply.has_error()
    assert np.abs(change(reply, linear())).sum() > 0


def test_whole_numbers_in_the_place_of_trained_parameters_are_refused(tmp_path):
    """The ledger counts real numbers: whole ones would be trained beside what is paid for."""
    path = ledger_at(tmp_path / "b.db")
    message = asked(linear())
    weight = Array(np.zeros((10, 64), np.int64))
    message.content["arrays"] = ArrayRecord({"weight": weight, "bias": Array(np.zeros(10, np.float32))})
    assert app_with(privately)(message, at()).has_error()
    assert released(path) == []


# --- the statement at the server --------------------------------------------------------------------------------------


def test_the_server_states_what_owners_agreed_to_tell(tmp_path):
    """Two of three owners agree; the statement has their figure, and says that somebody is missing in it."""
    for number in range(3):
        ledger_at(tmp_path / "b" / f"{number}.db", 1e3, *(["privacy statement"] if number else []))
    app = app_with(privately, ledger="b")
    nodes = {100 + number: {"partition-id": number} for number in range(3)}
    strategy = stated(FedAvg(fraction_evaluate=0.0), tmp_path / "statement.json")
    strategy.start(
        OneNode(app, nodes), ArrayRecord(linear().state_dict()), num_rounds=2, train_config=ConfigRecord({"lr": 0.1})
    )
    statement = strategy.statement
    (row,) = [row for row in statement.rows if row.adjacency is BY_RECORD]
    own = released(tmp_path / "b" / "1.db")
    assert [each.what for each in own] == [WHAT, "privacy statement"] * 2
    assert math.isinf(row.proven) and row.who.names == ("node 101", "node 102")
    assert len(statement.caveats) == 2 and statement.caveats[1].startswith("1 node")
    assert "epsilon" in (tmp_path / "statement.txt").read_text() and (tmp_path / "statement.json").is_file()


def test_a_node_that_stops_stating_has_no_finite_figure(tmp_path):
    """What it sent without a word counts too: the rounds before cannot be stated as if they were all."""
    path = ledger_at(tmp_path / "b" / "0.db", 1e3, "privacy statement")
    app = app_with(privately, ledger="b", kind=Bounded)
    strategy = stated(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1), tmp_path / "statement.json"
    )

    def rounds(lr: float) -> None:
        grid, start = OneNode(app, {100: {"partition-id": 0}}), ArrayRecord(linear().state_dict())
        strategy.start(grid, start, num_rounds=1, train_config=ConfigRecord({"lr": lr}))

    rounds(0.1)
    assert all(math.isfinite(row.proven) for row in strategy.statement.rows)
    with Ledger.open(path) as ledger:
        ledger.set_consent("records", "privacy statement", granted=False)
    rounds(0.2)
    statement = strategy.statement
    assert {row.adjacency for row in statement.rows} >= {BY_RECORD}
    assert all(math.isinf(row.proven) for row in statement.rows)
    assert len(statement.caveats) == 2 and "node 100" in statement.caveats[1]
    written = json.loads((tmp_path / "statement.json").read_text())
    assert "node 100" in written["caveats"][1]


def test_an_evaluation_that_carries_nothing_leaves_nothing_out_of_the_statement(tmp_path):
    ledger_at(tmp_path / "b" / "0.db", 1e3, "privacy statement")
    app = app_with(privately, ledger="b", kind=Bounded)

    @app.evaluate()
    def score(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 1.0})}), reply_to=message)

    one = {"min_available_nodes": 1, "min_train_nodes": 1, "min_evaluate_nodes": 1}
    strategy, grid = stated(FedAvg(**one), tmp_path / "statement.json"), OneNode(app, {100: {"partition-id": 0}})
    strategy.start(grid, ArrayRecord(linear().state_dict()), num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))
    assert strategy.statement.rows and all(math.isfinite(row.proven) for row in strategy.statement.rows)
    for metrics, is_finite in (({"num-examples": 1}, True), ({"num-examples": 1, "accuracy": 0.5}, False)):
        question = asked(linear(), kind="evaluate", node=100)
        reply = Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=question)
        strategy.aggregate_evaluate(1, [reply])
        assert {math.isfinite(row.proven) for row in strategy.statement.rows} == {is_finite}


def test_the_mod_is_a_value(tmp_path):
    assert isinstance(record_privacy("b.db", **SETTINGS), RecordPrivacy)
    assert record_privacy("b.db", **SETTINGS) == record_privacy("b.db", **SETTINGS)


def test_the_pages_table_is_what_both_accountants_say():
    from benchmarks import flower_accounting

    assert flower_accounting.table() in PAGE
