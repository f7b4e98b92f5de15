"""Private evaluation at a real client: what it answers once, what it refuses, and what a crash leaves."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino.client.client import Client
from sordino.client.membership import Membership
from sordino.client.own_records import OwnRecords
from sordino.client.refusal import Reason
from sordino.client.settings import OwnLimits, Settings
from sordino.deploy.requirements import requirements
from sordino.errors import InvalidInput
from sordino.fleets.interface import Reply
from sordino.fleets.signatures import SignedFleet
from sordino.fleets.sockets import SocketFleet
from sordino.learning.stacked_model import Execution
from sordino.methods.interface import State
from sordino.methods.private_evaluation import EVALUATE, WHAT
from sordino.methods.silo_dp import WHAT as TRAINED
from sordino.privacy.history import ranges
from sordino.privacy.ledger import Released
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.runs.serving import CoordinatorSetup, serve
from sordino.runs.simulation import run
from sordino.storage.files import NotWritten
from sordino.web import page_task
from sordino.wire.messages import Answer, Kind, Plan
from tests.client import people
from tests.client.people import KEY, NAME, DirectFleet, body, invitation, joined, signed, terms
from tests.client.test_attacks import refused
from tests.client.test_sums import listing

RECORD = {"adjacency": "record (add/remove)", "delta": 1e-5}
EVALUATED: dict[str, Any] = {
    "data.train_limit": 60,
    "split": {"kind": "iid", "clients": 3},
    "rounds.count": 4,
    "evaluation.private": {"share": 0.4, "every": 2, "target": {"epsilon": 2.0, "delta": 1e-5}},
    "method": {"name": "silo-dp", "noise_multiplier": 4.0, "sampling_rate": 0.5, "steps": 1, "announced_size": 12},
}


def recipe(changes: dict[str, Any] | None = None) -> Recipe:
    given = {key: value for key, value in people.tiny.TINY.items() if key not in ("method", "training", "name")}
    tables = {
        **given,
        "name": "tiny",
        "method": EVALUATED["method"],
        "training": {"optimizer": {"name": "sgd", "lr": 1.0}},
    }
    return Recipe.from_dict(tables).with_({**EVALUATED, **(changes or {})})


def own(limit: float = 50.0, rows: str = "0-19", **tables: Any) -> Settings:
    return people.settings(rows, limit, budget=RECORD, **tables)


def evaluation(round: int, shift: float = 0.0, given: Recipe | None = None) -> Plan:
    """The plan of an evaluation after a round, of a model moved by `shift`."""
    federation = wire(given or recipe())
    assert federation.evaluation is not None
    start = federation.method.init()
    return federation.evaluation.plan(State(round, start.parameters + np.float32(shift), start.arrays), NAME)


def training(round: int, given: Recipe | None = None) -> Plan:
    return people.plans(given or recipe())(round)


def ask(client: Client, plan: Plan, step: str = EVALUATE, given: Recipe | None = None) -> bytes:
    return client.answer(step, signed(plan, step, given=given or recipe()))


def turned_away(client: Client, plan: Plan, reason: Reason, step: str = EVALUATE, given: Recipe | None = None) -> None:
    refused(client, plan, reason, step, given or recipe())


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Client]:
    with joined(tmp_path / "a", recipe(), own()) as found:
        yield found


def test_an_evaluation_is_recorded_with_its_bytes_and_answered_once(member: Client) -> None:
    first = ask(member, evaluation(2))
    spent = member.standing.spent
    assert len(body(first)) == 16
    assert ask(member, evaluation(2)) == first
    assert member.standing.spent == spent
    entry = member.ledger.entries()[-1].event
    assert isinstance(entry, Released)
    assert (entry.key.federation, entry.key.round, [own.what for own in entry.releases]) == (
        f"{NAME}, evaluation", 2, [WHAT],
    )  # fmt: skip
    assert member.ledger.replay(entry.key) == body(first)
    assert spent > 0


def test_training_and_evaluation_of_one_round_are_two_answers(member: Client) -> None:
    ask(member, training(1), "report")
    ask(member, training(2), "report")
    ask(member, evaluation(2))
    ask(member, training(3), "report")
    assert member.federations() == {NAME: 3}
    kinds = [event.releases[0].what for entry in member.ledger.entries() if isinstance(event := entry.event, Released)]
    assert kinds == ["model update (DP-SGD)", "model update (DP-SGD)", WHAT, "model update (DP-SGD)"]


def test_what_the_recipe_does_not_ask_for_is_refused(member: Client) -> None:
    for round in (1, 3, 5):
        turned_away(member, evaluation(round), Reason.NOT_IN_RECIPE)
    plan = evaluation(2)
    turned_away(member, plan, Reason.NOT_IN_RECIPE, "report")
    turned_away(member, training(2), Reason.NOT_IN_RECIPE)
    turned_away(member, replace(plan, settings={}), Reason.NOT_IN_RECIPE)
    turned_away(member, replace(plan, settings={**plan.settings, "more": 1}), Reason.NOT_IN_RECIPE)
    turned_away(member, replace(plan, arrays={"parameters": np.zeros(3, np.float32)}), Reason.NOT_IN_RECIPE)
    turned_away(member, evaluation(2, np.nan), Reason.NOT_IN_RECIPE)


def test_a_second_model_or_an_earlier_round_is_refused(member: Client) -> None:
    """Two models in one round, or a model again, would be more looks at the same records than were agreed to."""
    ask(member, evaluation(4))
    turned_away(member, evaluation(4, 0.1), Reason.OUT_OF_ORDER)
    turned_away(member, evaluation(2), Reason.OUT_OF_ORDER)


def test_a_recipe_without_evaluation_has_none(tmp_path: Path) -> None:
    plain = Recipe.from_dict({k: v for k, v in recipe().to_dict().items() if k != "evaluation"})
    with joined(tmp_path / "a", plain, own()) as client:
        turned_away(client, evaluation(2), Reason.NOT_IN_RECIPE, given=plain)


def test_a_signature_for_another_step_does_not_serve(member: Client) -> None:
    message = signed(evaluation(2), "report", given=recipe())
    reply = member.reply(EVALUATE, message)
    assert (reply.reason, reply.payload) == (Reason.NOT_SIGNED.value, b"")


def test_a_budget_that_is_too_small_declines_the_evaluation_and_the_client_still_trains(tmp_path: Path) -> None:
    costly = recipe({"evaluation.private.target": {"epsilon": 20.0, "delta": 1e-5}})
    with joined(tmp_path / "a", costly, own(limit=4.0)) as client:
        ask(client, training(1, costly), "report", costly)
        turned_away(client, evaluation(2, given=costly), Reason.BUDGET, given=costly)
        assert Answer.decode(ask(client, training(2, costly), "report", costly)).kind is Kind.REPORT


def test_a_failing_evaluation_sends_the_noise_alone(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise ArithmeticError("of the records")

    monkeypatch.setattr(Membership, "evaluate", fails)
    found = np.frombuffer(body(ask(member, evaluation(2))), "<i8")
    assert (np.abs(found) < 8 * 2**18).all()
    assert "reported noise alone" in (member.folder / "log.txt").read_text()


class FewRows(torch.nn.Linear):
    """Each record by itself; it fails for records that are as bright as `most`."""

    most = math.inf

    def __init__(self, classes: int) -> None:
        super().__init__(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) >= FewRows.most:
            raise IndexError("beyond the table of brightness")
        return super().forward(x.flatten(1))


def test_a_record_that_the_model_fails_on_takes_only_itself_out_of_the_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = f"{__name__}:FewRows"
    given = recipe(
        {
            "model": {"name": network, "per_record": True, "start": "fresh"},
            "evaluation.private.target.epsilon": 200.0,
        }
    )
    agreed = own(500.0, code=[network], per_record=True, unproven=[TRAINED, WHAT])
    with joined(tmp_path / "a", given, agreed) as client:
        membership, found = client._member(NAME), []
        assert membership.evaluation is not None and membership._held_out is not None
        data, counts = membership._held_out.normalised(membership.invitation), membership.evaluation.counts
        assert data is not None and len(data.x) > 5
        brightest = float(data.x.flatten(1).sum(1).max())
        plans = [evaluation(round, given=given) for round in (2, 4)]  # the server's own records are none of these
        for plan, most in zip(plans, (math.inf, brightest), strict=True):
            monkeypatch.setattr(FewRows, "most", most)
            answer = np.frombuffer(body(ask(client, plan, given=given)), "<i8")
            found.append(answer.sum() / counts.weight)
        assert found[0] - found[1] == pytest.approx(1, abs=8 * counts.deviation)
        assert found[1] > 8 * counts.deviation
        assert "noise alone" not in (client.folder / "log.txt").read_text()


def test_all_consents_that_a_schedule_lacks_are_asked_for_at_once(tmp_path: Path) -> None:
    """Where a consent is what lacks, no budget is said to be too small."""
    network = f"{__name__}:FewRows"
    given = recipe({"model": {"name": network, "per_record": True, "start": "fresh"}})
    with people.client(tmp_path / "none", own(500.0, code=[network], per_record=True)) as client:
        with people.refused(Reason.CONSENT) as refusal:
            client.join(invitation(given).encode())
        log = (client.folder / "log.txt").read_text()
        for words in (str(refusal.value), log.splitlines()[-1]):
            assert "consents.unproven in client.toml" in words and "sordino ledger" not in words
            assert f'"{TRAINED}"' in words and f'"{WHAT}"' in words
        assert log.count("refused") == 1
    with people.client(tmp_path / "one", own(500.0, code=[network], per_record=True, unproven=[TRAINED])) as client:
        offer = client.offer(invitation(given).encode())
        assert (offer.fits, offer.unprotected, offer.consent_stops) == (1, (TRAINED,), True)
        assert WHAT in offer.lacking and TRAINED not in offer.lacking
        assert offer.lacking in offer.to_text() and "your budget allows" not in offer.to_text()
    agreed = own(500.0, code=[network], per_record=True, unproven=[TRAINED, WHAT])
    with people.client(tmp_path / "both", agreed) as client:
        offer = client.offer(invitation(given).encode())
        assert (offer.fits, offer.lacking, offer.consent_stops) == (offer.rounds, "", False)


def test_a_consent_that_an_earlier_name_of_the_data_lacks_is_given_in_the_ledger(tmp_path: Path) -> None:
    network = f"{__name__}:FewRows"
    given = recipe({"model": {"name": network, "per_record": True, "start": "fresh"}, "evaluation.private": None})
    people.client(tmp_path / "a", own(500.0, code=[network], per_record=True)).close()
    renamed = own(500.0, code=[network], per_record=True, unproven=[TRAINED])
    data = renamed.data.model_copy(update={"name": "renamed"})
    (tmp_path / "a" / "client.toml").write_text(renamed.model_copy(update={"data": data}).to_toml())
    with Client.open(tmp_path / "a") as client, people.refused(Reason.CONSENT) as refusal:
        client.join(invitation(given).encode())
    assert f"sordino ledger consent {tmp_path / 'a' / 'ledger.sqlite'} records --unproven" in str(refusal.value)
    assert "client.toml" not in str(refusal.value)


def test_an_evaluation_must_fit_the_second_budget_too(tmp_path: Path) -> None:
    """It goes straight to the server, also where training is summed: who sees sums may see it as well."""
    given = recipe(
        {
            "method": {**EVALUATED["method"], "channel": {"kind": "summed"}},
            "split": {"kind": "iid", "clients": 4},
            "data.train_limit": 80,
        }
    )
    clients = {}
    for number in range(4):
        clients[number] = people.client(tmp_path / str(number), own())
        clients[number].join(invitation(given, number).encode())
    clients = listing(clients)
    path = clients[0].folder / "client.toml"
    second = 'limit = {}\nhonest = 2\ndelta = 1e-5\nadjacency = "record-add-remove"\n'
    text = path.read_text()
    plan = evaluation(2, given=given)
    for limit in (0.01, 50.0):
        clients[0].close()
        path.write_text(f"{text}\n[summed_budget]\n{second.format(limit)}")
        clients[0] = Client.open(clients[0].folder)
        if limit < 1:
            turned_away(clients[0], plan, Reason.BUDGET, given=given)
            assert not any(isinstance(entry.event, Released) for entry in clients[0].ledger.entries())
    ask(clients[0], plan, given=given)
    standing = clients[0].standing
    assert standing.summed is not None
    assert standing.summed.spent == standing.spent > 0
    for client in clients.values():
        client.close()


def test_the_time_of_an_evaluation_is_limited_by_public_numbers(tmp_path: Path) -> None:
    """A million records for training leave 670,000 aside, 0.1 ms each and more: a minute and more."""
    limited = own().model_copy(update={"limits": OwnLimits(seconds=60, memory=10**6)})
    for size, reason in ((12, None), (10**6, Reason.LIMIT_SECONDS)):
        given = recipe({"method": {**EVALUATED["method"], "sampling_rate": 1e-6, "announced_size": size}})
        with people.client(tmp_path / str(size), limited) as client:
            if reason is None:
                client.offer(invitation(given).encode())
            else:
                with people.refused(reason) as caught:
                    client.offer(invitation(given).encode())
                assert "for an evaluation" in str(caught.value)


def test_the_owner_reads_of_it_before_joining_and_it_counts_in_what_fits(tmp_path: Path) -> None:
    with people.client(tmp_path / "a", own(limit=6.0)) as client:
        offer = client.offer(invitation(recipe()).encode())
        released = [release.what for spent in offer.schedule for own in spent.releases for release in own]
        assert released.count(WHAT) == 2
        assert "Gaussian" in dict(offer.statement.rows[0].losses)
        plain = Recipe.from_dict({k: v for k, v in recipe().to_dict().items() if k != "evaluation"})
        assert offer.fits <= client.offer(invitation(plain, name="plain").encode()).fits


def test_the_budget_that_a_setup_proposes_has_room_for_evaluations() -> None:
    records = OwnRecords.read(own().data, Path())
    plain = Recipe.from_dict({k: v for k, v in recipe().to_dict().items() if k != "evaluation"})
    with_it, without = (requirements(invitation(given), records) for given in (recipe(), plain))
    assert (with_it.unproven, with_it.budget.adjacency) == ((), without.budget.adjacency)
    assert with_it.budget.limit > without.budget.limit + 1


def test_an_older_ledger_that_is_accepted_counts_evaluations_too(member: Client) -> None:
    lost = member._perhaps_lost(NAME, "0" * 64)
    assert sum(release.what == WHAT for release in lost) == 2
    ask(member, evaluation(2))
    assert sum(release.what == WHAT for release in member._perhaps_lost(NAME, "0" * 64)) == 1


def test_real_clients_give_the_figures_of_the_simulation_to_the_last_bit(tmp_path: Path) -> None:
    given = recipe()
    federation, simulated = wire(given), run(given, workers=1)
    clients = {}
    for number, (part, aside) in enumerate(zip(federation.parts, federation.held_out, strict=True)):
        place, rows = tmp_path / str(number), ranges([*part, *aside])
        people.client(place, own(rows=rows)).close()
        clients[number] = Client.open(place, randomness=people.seeded(7, number), execution=Execution())
        clients[number].join(invitation(given, number).encode())
    coordinator, state = people.coordinator(federation, DirectFleet(clients)), federation.method.init()
    assert federation.evaluation is not None
    figures = []
    for _ in range(given.rounds.count):
        state, outcome = coordinator.round(state)
        assert outcome.counted
        if federation.evaluation.due(state.round):
            found = coordinator.evaluate(federation.evaluation, state)
            assert found.attendance.reported == [0, 1, 2]
            figures.append(federation.evaluation.estimates(found.total, 3)[0].value)
    wanted = [record.private.figures[0].value for record in simulated.rounds if record.private is not None]
    assert figures == wanted
    for client in clients.values():
        client.close()


@pytest.mark.network
def test_a_client_that_is_killed_after_recording_answers_with_the_same_bytes(tmp_path: Path) -> None:
    """It is killed when its answer is durable and has not left; the next life sends those bytes, and spends nothing."""
    joined(tmp_path / "a", recipe(), own()).close()
    deadly = tmp_path / "deadly"
    deadly.touch()
    lives = [{
        "folder": str(tmp_path / "a"), "socket": str(tmp_path / "a.sock"), "number": 0, "seed": None,
        "deadly": str(deadly), "deaths": [[EVALUATE, "after"]],
    }]  # fmt: skip
    (tmp_path / "lives.json").write_text(json.dumps(lives))
    command = [sys.executable, "-m", "tests.client.lives", str(tmp_path / "lives.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        signing = SignedFleet(SocketFleet({0: str(tmp_path / "a.sock")}, patience=60.0), KEY, terms(recipe()).digest)
        replies, deadline = list[Reply](), time.monotonic() + 60
        while not any(reply.message for reply in replies) and time.monotonic() < deadline:
            replies = list(signing.exchange(EVALUATE, {0: evaluation(2).encode()}, time.monotonic() + 30))
        process.terminate()
    (body,) = {reply.answer.body for reply in replies if reply.message}  # an answer to an earlier asking may be late
    with Client.open(tmp_path / "a") as client:
        events = [entry.event for entry in client.ledger.entries() if isinstance(entry.event, Released)]
        assert len(events) == 1
        assert client.ledger.replay(events[0].key) == body


def test_pages_are_refused_with_the_key_to_leave_out() -> None:
    with pytest.raises(InvalidInput, match=r"evaluation\.private"):
        page_task.check(recipe())


class BreakingFleet(DirectFleet):
    """Clients of this process, whose server breaks down once, when some of them have evaluated."""

    breaks = True

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: Any) -> Generator[Reply]:
        for number, reply in enumerate(super().exchange(step, messages, deadline)):
            if step == EVALUATE and self.breaks and number == 1:
                BreakingFleet.breaks = False
                raise NotWritten("the server's disk is full")
            yield reply


def test_a_server_that_breaks_down_in_an_evaluation_goes_on_with_the_same_answers(tmp_path: Path) -> None:
    """Rounds before it are stored. The round is held again, clients send what they recorded, and nothing is spent."""
    given = recipe({"rounds.count": 2})
    KEY.write(tmp_path / "run.key")
    clients = {}
    for number in range(3):
        rows = f"{20 * number}-{20 * number + 19}"
        clients[number] = people.client(tmp_path / str(number), own(rows=rows))
        clients[number].join(invitation(given, number).encode())
    fleet, setup = BreakingFleet(clients), CoordinatorSetup(federation=NAME, key=tmp_path / "run.key")
    with pytest.raises(NotWritten):
        serve(given, fleet, tmp_path / "run", setup)
    spent = clients[0].standing.spent
    outcome = serve(given, fleet, tmp_path / "run", setup, resume=True)
    assert clients[0].standing.spent == spent
    private = outcome.result.private
    assert private is not None
    assert (private.reported, private.declined, [record.restarts for record in outcome.rounds]) == (3, 0, [0, 1])
    evaluation, recorded = wire(given).evaluation, np.zeros(2, np.int64)
    for client in clients.values():
        event = client.ledger.entries()[-1].event
        assert evaluation is not None and isinstance(event, Released)
        recorded += evaluation.decode(client.ledger.replay(event.key) or b"")
    assert private.records == pytest.approx(recorded.sum() / evaluation.counts.weight)
    (last,) = [spent for spent in outcome.releases if spent.extra]
    assert (last.round, [list(who) for who in last.clients], last.releases[1][0].what) == (2, [[0, 1, 2]] * 2, WHAT)
    for client in clients.values():
        client.close()
