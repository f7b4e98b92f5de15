"""A client drops the bytes of reports that were kept for long enough, and answers no plan twice because of that."""

import json
import shutil
from pathlib import Path

import pytest

from sordino.client.client import Client
from sordino.client.refusal import Reason
from sordino.client.settings import Settings
from sordino.errors import InvalidInput
from sordino.privacy.ledger import Compacted, Holdings, Ledger
from sordino.wire.requests import Response
from tests.client import people
from tests.client.people import COST, NAME, body, joined, plans, settings, signed
from tests.client.test_sums import summed

AT_ONCE = {"reports_days": 0}


@pytest.fixture(autouse=True)
def _digits_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.learning.datasets.load", people.read_once)


def acknowledged(client: Client, round: int) -> Response:
    """The answer to a round; its receipt comes back at once."""
    response = client.reply("report", signed(plans()(round)))
    client.receive_receipt(NAME, response.receipt)
    return response


def test_a_round_that_is_over_is_declined_and_costs_nothing_and_the_last_one_is_sent_again(tmp_path: Path) -> None:
    with joined(tmp_path / "a", own=settings(keep=AT_ONCE)) as client:
        first = acknowledged(client, 1)
        assert client.answer("report", signed(plans()(1))) == first.payload, "a receipt alone says nothing of its round"
        second = acknowledged(client, 2)
        assert client.ledger.holdings() == Holdings(1, len(body(second.payload)), 1)
        head = client.ledger.head()
        declined = client.reply("report", signed(plans()(1)))
        assert (declined.fine, declined.reason) == (False, Reason.COMPACTED.value)
        assert declined.payload == b"", "not 'declined', which would say that nothing has left"
        assert client.answer("report", signed(plans()(2))) == second.payload
        assert (client.standing.spent, client.ledger.head()) == (pytest.approx(2 * COST), head)
        body(client.answer("report", signed(plans()(3))))
    assert "only the hash of that report is kept" in (tmp_path / "a/log.txt").read_text()


def test_reports_are_kept_for_thirty_days_unless_the_owner_says_otherwise(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with joined(folder) as client:
        answers = {round: acknowledged(client, round).payload for round in (1, 2)}
        assert client.answer("report", signed(plans()(1))) == answers[1]
    text = (folder / "client.toml").read_text()
    assert "reports_days = 30.0" in text
    (folder / "client.toml").write_text(text.replace("reports_days = 30.0", "reports_days = 0"))
    with Client.open(folder) as again:
        assert again.ledger.holdings().hashes == 1, "what is due is dropped when the client starts"
        assert again.reply("report", signed(plans()(1))).reason == Reason.COMPACTED.value
        assert again.answer("report", signed(plans()(2))) == answers[2]


def test_a_ledger_in_use_is_compacted_when_a_quarter_of_its_bytes_is_due(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sordino.client.client.DUE_SHARE", 0.6)
    with joined(tmp_path / "a", own=settings(keep=AT_ONCE)) as client:
        dropped = [acknowledged(client, round) and client.ledger.holdings().hashes for round in (1, 2, 3)]
    assert dropped == [0, 0, 2], "half of the bytes are due after the second round, two thirds after the third"


def test_receipts_of_before_a_compaction_are_known_and_a_ledger_of_before_it_is_older(tmp_path: Path) -> None:
    folder, backup = tmp_path / "a", tmp_path / "backup.sqlite"
    with joined(folder, own=settings(keep=AT_ONCE)) as client:
        receipts = [acknowledged(client, 1).receipt]
        receipts.append(client.reply("report", signed(plans()(2))).receipt)
    shutil.copy(folder / "ledger.sqlite", backup)
    with Client.open(folder) as client:
        assert isinstance(client.ledger.entries()[-1].event, Compacted)
        for receipt in receipts:
            client.receive_receipt(NAME, receipt)
        assert not client.stopped
        receipt = acknowledged(client, 3).receipt
    shutil.copy(backup, folder / "ledger.sqlite")
    with Client.open(folder) as client:
        assert client.stopped
        assert client.ledger.holdings().hashes == 0, "what its owner must look at stays as it is"
        with people.refused(Reason.OLDER_LEDGER):
            client.receive_receipt(NAME, receipt)


def test_a_summed_round_that_is_over_is_declined_in_every_step_and_costs_nothing(tmp_path: Path) -> None:
    federation = summed(4)
    clients = people.members(tmp_path, federation, keep=AT_ONCE)
    fleet, start = people.DirectFleet(clients), federation.method.init()
    coordinator = people.coordinator(federation, fleet)
    state, first = coordinator.round(start)
    _, second = coordinator.round(state)
    assert first.counted and second.counted
    for client in clients.values():
        client._compact(0.0)
        assert client.ledger.holdings().hashes == 1
    spent = [client.standing.spent for client in clients.values()]
    _, again = coordinator.round(start)
    assert not again.counted and not again.attendance.declined
    assert fleet.reasons == dict.fromkeys(range(4), Reason.COMPACTED.value)
    assert [client.standing.spent for client in clients.values()] == spent


def test_a_ledger_that_cannot_be_compacted_stops_nothing(tmp_path: Path) -> None:
    with (
        joined(tmp_path / "a", own=settings(keep=AT_ONCE)) as client,
        Ledger.open(tmp_path / "a/ledger.sqlite") as other,
    ):
        acknowledged(client, 1)
        response = client.reply("report", signed(plans()(2)))
        client.ledger._db.connection.execute("PRAGMA busy_timeout = 1")
        with other._db.transaction("BEGIN IMMEDIATE"):
            client.receive_receipt(NAME, response.receipt)
        assert client.ledger.holdings().hashes == 0
        client.receive_receipt(NAME, response.receipt)
        assert client.ledger.holdings().hashes == 1


@pytest.mark.parametrize("days", [-1, 40_000])
def test_days_that_are_none_are_refused_in_words(days: float) -> None:
    with pytest.raises(InvalidInput, match=r"keep\.reports_days"):
        Settings.of(json.loads(json.dumps({**settings().model_dump(mode="json"), "keep": {"reports_days": days}})))
