"""Names of an owner's data: one budget for all in a folder, and rows are compared before two are called disjoint."""

import shutil
import stat

import numpy as np
import pytest

from sordino.client.client import Client
from sordino.client.refusal import Reason, Refused
from sordino.client.rows import KnownRows, fingerprints
from sordino.client.settings import Settings
from sordino.errors import InvalidInput
from sordino.learning.examples import Examples
from sordino.privacy.guarantee import Budget
from sordino.privacy.ledger import DisjointChanged
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
    known = KnownRows(tmp_path / "rows.sqlite")
    known.add("wards", many, lambda: 7)
    known.add("wards", many.take(np.arange(10)), lambda: 9)
    known.add("beds", many.take(np.arange(19_990, 20_000)), lambda: 3)
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
        KnownRows(tmp_path / "rows.sqlite").since("wards")


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


def test_rows_that_are_added_to_the_file_stop_the_next_start_and_no_round(tmp_path):
    folder = tmp_path / "a"

    def own(name, *others):
        data = {"source": "../own.csv", "label": 1, "classes": ["a", "b"], "name": name, "disjoint_from": others}
        return Settings.of({"data": data, "budget": {"limit": 1.0}})

    table(folder, 0, 10)
    with people.client(folder, own("first")) as client:
        client.records((1,))
    table(folder, 10, 10)
    (folder / "client.toml").write_text(own("second", "first").to_toml())
    with Client.open(folder) as client:
        table(folder, 9, 11)
        assert len(client.records((1,))) == 11, "what is in is in: a round looks at nothing"
        entries = len(client.ledger.entries())
    for _ in range(2):  # a row that was used under both names stays one
        with pytest.raises(InvalidInput, match="1 row of second is, or was, also under first") as refusal:
            Client.open(folder)
        assert "does not help" in str(refusal.value) and "or remove" not in str(refusal.value)
        table(folder, 10, 10)
    (folder / "client.toml").write_text(own("second").to_toml())
    with Client.open(folder) as client:
        assert len(client.ledger.entries()) == entries + 1


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
    rows = KnownRows(folder / "rows.sqlite")
    with rows._open() as file:
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
