"""Names of an owner's data: one budget for all in a folder, and rows are compared before two are called disjoint."""

import shutil
import stat
from dataclasses import replace

import numpy as np
import pytest

from sordino.client import rows as row_file
from sordino.client.client import Client
from sordino.client.refusal import Reason, Refused
from sordino.client.rows import KnownRows, fingerprints
from sordino.client.settings import Settings
from sordino.errors import InvalidInput
from sordino.learning.examples import Examples
from sordino.privacy.guarantee import Budget
from sordino.privacy.ledger import DisjointChanged, Ledger
from sordino.storage.files import InUse
from tests.client import people
from tests.client.people import COST, NAME, body, invitation, plans, signed

KEY = bytes(range(32))


def examples(rows, dtype=np.float32):
    x = np.array(rows, dtype)
    return Examples(x[:, :-1], x[:, -1].astype(np.int64))


def named(folder, name, rows="0-19", disjoint_from=(), limit=1e6):
    """Give the data of a client's folder another name, as its owner does in client.toml."""
    own = {"source": "digits", "rows": rows, "name": name, "disjoint_from": disjoint_from}
    given = Settings.of({"data": own, "budget": {"limit": limit}})
    (folder / "client.toml").write_text(given.to_toml())
    assert Settings.read(folder / "client.toml") == given
    return folder


@pytest.fixture
def folder(tmp_path):
    """A client that answered one round under the name "records"; its budget allows for one more."""
    with people.joined(tmp_path / "a", own=people.settings(limit=2.5 * COST)) as client:
        body(client.answer("report", signed(plans()(1))))
    return tmp_path / "a"


# --- fingerprints


def test_equal_rows_have_equal_fingerprints_and_others_have_not():
    rows = [[0.5, 1.0, 0], [0.5, 1.0, 1], [0.5, 1.25, 0], [1.0, 0.5, 0], [-0.0, 0.0, 0], [0.0, -0.0, 0]]
    found = fingerprints(examples(rows), KEY)
    assert found.dtype == np.uint64 and len(set(found.tolist())) == 5 and found[4] == found[5]
    whole = [[1, 2, 0], [3, 4, 1]]
    assert (fingerprints(examples(whole, np.uint8), KEY) == fingerprints(examples(whole), KEY)).all()
    assert not set(found.tolist()) & set(fingerprints(examples(rows), bytes(32)).tolist())
    assert len(fingerprints(examples(rows).take(np.arange(0)), KEY)) == 0


def test_the_file_is_small_its_owners_alone_and_holds_no_row(tmp_path):
    rng = np.random.default_rng(1)
    many = Examples(rng.random((20_000, 8), dtype=np.float32), np.zeros(20_000, np.int64))
    known = KnownRows(tmp_path / "rows.sqlite", Ledger.create(tmp_path / "ledger.sqlite"))
    known.take("wards", many, lambda: 7)
    known.take("wards", many.take(np.arange(10)), lambda: 9)
    known.take("beds", many.take(np.arange(19_990, 20_000)), lambda: 3)
    assert stat.S_IMODE((tmp_path / "rows.sqlite").stat().st_mode) == 0o600
    content = (tmp_path / "rows.sqlite").read_bytes()
    assert len(content) < 20_010 * 10 + 30_000
    assert many.x[0].tobytes() not in content
    assert [known.since(name) for name in ("wards", "beds", "rooms")] == [7, 3, None]
    assert known.common("rooms", [many.take(np.arange(5, 19_995))], ["wards", "beds", "x"]) == {
        "wards": 19_990,
        "beds": 5,
    }
    assert known.common("beds", [], ["wards"]) == {"wards": 10}, "what was there before counts too"


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "rows.sqlite").write_bytes(b"something else" * 100)
    with pytest.raises(InvalidInput, match=r"rows\.sqlite"):
        KnownRows(tmp_path / "rows.sqlite", Ledger.create(tmp_path / "ledger.sqlite")).since("wards")


# --- names


def test_data_by_another_name_have_the_same_budget(folder):
    with Client.open(named(folder, "renamed", limit=2.5 * COST)) as client:
        assert client.standing.spent == pytest.approx(COST)
        body(client.answer("report", signed(plans()(2))))
        reply = client.reply("report", signed(plans()(3)))
        assert reply.reason == Reason.BUDGET.value
    with Client.open(named(folder, "records", limit=2.5 * COST)) as client:
        assert client.standing.spent == pytest.approx(2 * COST)


def test_an_offer_counts_what_left_under_another_name(folder):
    with Client.open(named(folder, "renamed", limit=2.5 * COST)) as client:
        offer = client.offer(invitation(name="another").encode())
        assert (offer.fits, offer.rounds) == (1, 3)


def test_names_that_are_disjoint_as_declared_have_budgets_of_their_own(folder):
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:
        assert client.standing.spent == 0.0
        assert client.ledger.standing("records").spent == pytest.approx(COST)
        assert client.reply("report", signed(plans()(2))).reason == Reason.NOT_AGREED.value, "it keeps what others left"
        client.join(invitation(name="another").encode())
        body(client.answer("report", signed(plans(name="another")(1))))
        assert client.ledger.standing("records").spent == client.standing.spent == pytest.approx(COST)
    with Client.open(named(folder, "others", "20-39")) as client:  # withdrawn
        assert client.standing.spent == client.ledger.standing("records").spent == pytest.approx(2 * COST)
        client.ledger.set_budget("records", Budget(1e6))
        body(client.answer("report", signed(plans()(2))))
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:  # both answered one federation
        assert client.standing.spent == client.ledger.standing("records").spent == pytest.approx(3 * COST)


def test_one_common_row_stops_the_client_before_anything_is_written_or_joined(folder):
    before = (folder / "ledger.sqlite").read_bytes(), (folder / "rows.sqlite").read_bytes()
    with pytest.raises(InvalidInput, match=r"1 row of others is, or was, also under records.*remove these rows"):
        Client.open(named(folder, "others", "19-39", ["records"]))
    assert ((folder / "ledger.sqlite").read_bytes(), (folder / "rows.sqlite").read_bytes()) == before
    assert not (folder / ".lock").exists()
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:  # without that row
        assert client.standing.spent == 0.0
    with Client.open(named(folder, "others", "19-39")) as client:  # or without the declaration
        assert client.standing.spent == pytest.approx(COST)


def test_the_same_rows_are_not_disjoint_under_another_name(folder):
    with pytest.raises(InvalidInput, match="20 rows of renamed are, or were, also under records"):
        Client.open(named(folder, "renamed", disjoint_from=["records"]))


def test_a_name_that_the_ledger_does_not_know_is_not_declared_disjoint(folder):
    before = (folder / "ledger.sqlite").read_bytes()
    with pytest.raises(InvalidInput, match=r"data\.disjoint_from.*'recrods'.*'records'"):
        Client.open(named(folder, "others", "20-39", ["records", "recrods"]))
    assert (folder / "ledger.sqlite").read_bytes() == before


def table(folder, first, count):
    lines = (f"{k / 7},{'ab'[k % 2]}\n" for k in range(first, first + count))
    (folder.parent / "own.csv").write_text("".join(lines))


def two_names(folder):
    """A client that knows rows 0 to 9 of a table as "first", and is now "second", disjoint from it, with 10 to 19."""

    def own(name, *others):
        data = {"source": "../own.csv", "label": 1, "classes": ["a", "b"], "name": name, "disjoint_from": others}
        return Settings.of({"data": data, "budget": {"limit": 1.0}})

    table(folder, 0, 10)
    with people.client(folder, own("first")) as client:
        client.records((1,))
    table(folder, 10, 10)
    (folder / "client.toml").write_text(own("second", "first").to_toml())
    Client.open(folder).close()


def test_rows_that_get_into_the_file_later_are_left_out_and_stop_nothing(tmp_path):
    folder = tmp_path / "a"
    two_names(folder)
    for _ in range(2):
        with Client.open(folder) as client:
            table(folder, 9, 11)
            records = client.records((1,))
            assert records.examples.x[:, 0].tolist() == [np.float32(k / 7) for k in range(10, 20)]
            assert len(records.left_out) == 1 and "WARNING" in (folder / "log.txt").read_text()
            with pytest.raises(InvalidInput, match="1 row of second is, or was, also under first"):
                client.require_disjoint_rows()  # as its owner joins by hand
            assert client.ledger.disjoint_from("second").keys() == {"first"}
    with Client.open(folder) as client:
        assert client._known_rows.common("second", [], ["first"]) == {}


def test_a_row_that_was_used_under_both_names_stays_one(folder):
    with Client.open(named(folder, "others", "19-39")) as client:
        client.records((1, 8, 8))
        entries = len(client.ledger.entries())
    for rows in ("19-39", "20-39"):
        with pytest.raises(InvalidInput, match="1 row of others is, or was, also under records") as refusal:
            Client.open(named(folder, "others", rows, ["records"]))
        assert "does not help" in str(refusal.value) and "or remove" not in str(refusal.value)
    with Client.open(named(folder, "others", "20-39")) as client:
        assert len(client.ledger.entries()) == entries


def test_a_row_under_both_names_changes_nothing_that_a_server_sees(folder):
    others = named(folder, "others", "20-39", ["records"])
    with Client.open(others) as client:
        client.join(invitation(name="another").encode())
        body(client.answer("report", signed(plans(name="another")(1))))
    answers = []
    for rows in ("20-39", "19-39"):
        copy = shutil.copytree(others, folder.parent / rows)
        with Client.open(named(copy, "others", rows, ["records"]), randomness=people.seeded(1, 0)) as client:
            client.join(invitation(name="another").encode())  # as a server asks after a pause
            client.join(invitation(name="third").encode())
            answers.append(body(client.answer("report", signed(plans(name="another")(2)))))
            assert len(client.records((1, 8, 8))) == 20
    assert answers[0] == answers[1]


def test_rows_are_compared_whatever_the_federations_are_about(tmp_path):
    """One that is about another shape finds no record that fits, and so nothing that is common."""

    def own(name, *others):
        data = {"source": "../own.npz", "classes": [str(k) for k in range(10)], "name": name, "disjoint_from": others}
        return Settings.of({"data": data, "budget": {"limit": 1e6}})

    digits, folder = people.read_once("digits").train, tmp_path / "a"
    np.savez(tmp_path / "own.npz", x=digits.x[:20], y=digits.y[:20])
    with people.client(folder, own("records")) as client:
        client.records((1, 8, 8))
        client.join(replace(people.terms(None), shape=(1, 6, 6)).invitation(0, people.KEY).encode())
    (folder / "client.toml").write_text(own("renamed", "records").to_toml())
    with pytest.raises(InvalidInput, match="20 rows of renamed are, or were, also under records"):
        Client.open(folder)


def test_no_third_name_carries_a_federation_from_one_name_to_another(tmp_path):
    with people.client(tmp_path / "a", people.settings("0-19")) as client:
        client.records((1, 8, 8))
    folder = tmp_path / "a"
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:
        client.records((1, 8, 8))
    with Client.open(named(folder, "all", "0-39")) as client:
        client.join(invitation().encode())
        body(client.answer("report", signed(plans()(1))))
    with Client.open(named(folder, "records", "0-19", ["others"])) as client:
        assert client.reply("report", signed(plans()(2))).reason == Reason.NOT_AGREED.value
    with Client.open(named(folder, "records", "0-19")) as client:  # one account again
        body(client.answer("report", signed(plans()(2))))
    with Client.open(named(folder, "records", "0-19", ["others"])) as client:
        assert client.ledger.standing("others").spent == client.standing.spent == pytest.approx(2 * COST)


def test_what_left_before_rows_were_known_is_charged_to_both_names(folder):
    (folder / "rows.sqlite").unlink()  # as after an earlier Sordino
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:
        assert client.standing.spent == client.ledger.standing("records").spent == pytest.approx(COST)
        client.join(invitation(name="another").encode())
        body(client.answer("report", signed(plans(name="another")(1))))
        assert client.standing.spent == pytest.approx(2 * COST)
        assert client.ledger.standing("records").spent == pytest.approx(COST)
        (declared,) = [e for e in client.ledger.entries() if isinstance(e.event, DisjointChanged)]
        assert 0 < declared.event.after < declared.sequence


def test_an_older_file_of_rows_has_forgotten_some(folder):
    older = (folder / "rows.sqlite").read_bytes()
    with Client.open(named(folder, "records", "0-39")) as client:  # more rows, which leave
        body(client.answer("report", signed(plans()(2))))
    newer = (folder / "rows.sqlite").read_bytes()
    for content, spent in ((newer, 0), (older, 2 * COST)):
        copy = shutil.copytree(folder, folder.parent / str(spent))
        (copy / "rows.sqlite").write_bytes(content)
        with Client.open(named(copy, "others", "40-59", ["records"])) as client:
            assert client.standing.spent == pytest.approx(spent)


@pytest.mark.parametrize("restored", [False, True], ids=["lost", "restored"])
@pytest.mark.parametrize("declared", [False, True], ids=["declared after", "declared before"])
def test_without_the_newest_file_of_rows_no_row_gets_a_second_budget(folder, declared, restored):
    """Rows 20 to 39 leave under "records"; then the file that knows it goes, and they come again under "others"."""
    older = (folder / "rows.sqlite").read_bytes()
    if declared:
        with Client.open(named(folder, "others", "40-59", ["records"])):
            pass
        with Client.open(named(folder, "records", disjoint_from=["others"])):
            older = (folder / "rows.sqlite").read_bytes()
    with Client.open(named(folder, "records", "20-39", ["others"] if declared else [])) as client:
        body(client.answer("report", signed(plans()(2))))
    for path in folder.glob("rows.*"):
        path.unlink()
    if restored:
        (folder / "rows.sqlite").write_bytes(older)
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:
        client.join(invitation(name="another").encode())
        body(client.answer("report", signed(plans(name="another")(1))))
        assert client.standing.spent == pytest.approx(3 * COST), "all that left of these rows"


def test_a_file_of_rows_that_is_lost_while_a_client_runs_counts_too(folder):
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:
        (folder / "rows.sqlite").unlink()
        client.join(invitation(name="another").encode())
        body(client.answer("report", signed(plans(name="another")(1))))
        assert client.standing.spent == pytest.approx(2 * COST)


def test_a_second_process_with_other_names_answers_nothing(folder):
    """Both read the same rows; the first began before the second declared its name disjoint from the first's."""
    with Client.open(named(folder, "records", "20-39")) as first:
        with Client.open(named(folder, "others", "20-39", ["records"])) as second:
            second.join(invitation(name="another").encode())
            body(second.answer("report", signed(plans(name="another")(1))))
            assert first.reply("report", signed(plans()(2))).reason == Reason.UNAVAILABLE.value, "it holds the lock"
        for _ in range(2):
            assert first.reply("report", signed(plans()(2))).reason == Reason.UNAVAILABLE.value
    with Client.open(named(folder, "records", "20-39")) as again:
        assert again.standing.spent == pytest.approx(2 * COST)


def test_of_two_processes_that_read_one_row_under_two_names_one_gets_it(folder, monkeypatch):
    """Row 20 gets under both names; the second process joins while the first compares its own rows."""
    with Client.open(named(folder, "others", "21-39", ["records"])):
        pass
    first = Client.open(named(folder, "records", "0-20", ["others"]))
    second = Client.open(named(folder, "others", "20-39", ["records"]))

    def late(examples, key):
        monkeypatch.setattr(row_file, "fingerprints", fingerprints)
        second.join(invitation(name="another").encode())
        return fingerprints(examples, key)

    with first, second:
        monkeypatch.setattr(row_file, "fingerprints", late)
        first.join(invitation(name="third").encode())
        assert [len(client.records((1, 8, 8))) for client in (first, second)] == [20, 20]
        assert first._known_rows.common("records", [], ["others"]) == {}


def test_a_row_that_is_found_under_both_names_gives_neither_a_second_budget(folder):
    """As an earlier Sordino may have left it; what leaves later has this row under neither name."""
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:
        client.join(invitation(name="another").encode())
        body(client.answer("report", signed(plans(name="another")(1))))
        twice = client.records((1, 8, 8)).examples.take(np.arange(1))
        client._known_rows.take("records", twice, lambda: 0)
        body(client.answer("report", signed(plans(name="another")(2))))
    for name, own in (("others", "20-39"), ("records", "0-20")):
        with Client.open(named(folder, name, own, [{"others": "records", "records": "others"}[name]])) as client:
            assert client.standing.spent == pytest.approx(3 * COST)
            assert client.ledger.standing("records").spent == client.ledger.standing("others").spent
            assert len(client.records((1, 8, 8))) == {"others": 19, "records": 20}[name]
    assert "has a row under both" in (folder / "log.txt").read_text()


def test_rows_are_not_known_before_what_left_of_them_is_charged(folder):
    first = Client.open(named(folder, "others", "20-39", ["records"]))
    second = Client.open(named(folder, "records", disjoint_from=["others"]))
    with first, second:
        first.join(invitation(name="another").encode())
        body(first.answer("report", signed(plans(name="another")(1))))  # it holds the lock
        (folder / "rows.sqlite").unlink()
        with pytest.raises(Refused):
            second.offer(invitation(name="third").encode())
        assert second._known_rows.since("records") is None


def test_names_are_not_declared_disjoint_while_a_client_answers(folder):
    with Client.open(folder) as client:
        body(client.answer("report", signed(plans()(2))))
        with pytest.raises(InUse):
            Client.open(named(folder, "others", "20-39", ["records"]))
        body(client.answer("report", signed(plans()(2))))


def test_what_a_restored_ledger_lacks_is_charged_to_all_names(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "backup")
    with Client.open(folder) as client:
        receipt = client.reply("report", signed(plans()(2))).receipt
    named(tmp_path / "backup", "others", "20-39", ["records"])
    with Client.open(tmp_path / "backup") as client:
        with pytest.raises(Refused):
            client.receive_receipt(NAME, receipt)
        with pytest.raises(InvalidInput, match=r"data\.disjoint_from"):
            client.accept_older_ledger()
    with Client.open(named(tmp_path / "backup", "others", "20-39")) as client:
        client.ledger.set_budget("records", Budget(1e6))
        assert client.accept_older_ledger() == pytest.approx(3 * COST)
    with Client.open(named(tmp_path / "backup", "others", "20-39", ["records"])) as client:
        assert client.standing.spent == client.ledger.standing("records").spent == pytest.approx(3 * COST)


def test_nothing_of_rows_or_names_is_in_an_answer(folder):
    with Client.open(named(folder, "others", "20-39", ["records"])) as client:
        client.join(invitation(name="another").encode())
        answer = client.answer("report", signed(plans(name="another")(1)))
        with client._known_rows._open() as file:
            secrets = [file.one("SELECT key FROM own")[0], *(row[0][:8] for row in file.all("SELECT rows FROM names"))]
    assert not [secret for secret in (*secrets, b"others", b"records") if secret in answer]


def test_a_round_does_not_open_the_file_of_rows_once_they_are_in(folder):
    with Client.open(folder) as client:
        client.records((1, 8, 8))
        (folder / "rows.sqlite").rename(folder / "gone")
        body(client.answer("report", signed(plans()(2))))
        assert not (folder / "rows.sqlite").exists()


def test_a_name_is_not_disjoint_from_itself(tmp_path):
    with pytest.raises(InvalidInput, match=r"data\.disjoint_from"):
        named(tmp_path, "records", disjoint_from=["records"])
