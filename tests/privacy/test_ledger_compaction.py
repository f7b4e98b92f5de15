"""Compaction drops bytes of reports and nothing else: chain, costs and "one key, one report" stay as they were."""

import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.privacy.ledgers import edit_behind_the_triggers, key, pure

from sordino.errors import InvalidInput, LedgerDamaged, LedgerUnavailable, ReportCompacted
from sordino.privacy.guarantee import Budget, Release
from sordino.privacy.ledger import Compacted, Freed, Holdings, Ledger, ReportKey
from sordino.storage.sqlite import Database

NOW = timedelta(0)
EPSILON = 0.125  # sums of it are exact


def draw() -> tuple[Release, bytes]:
    return pure(os.urandom(8).hex(), EPSILON), os.urandom(5_000)


class Clock:
    """The ledger's clock, so many days after the first."""

    days = 0.0

    def now(self, zone: tzinfo) -> datetime:
        return datetime(2026, 1, 1, tzinfo=zone) + timedelta(days=self.days)

    def fromisoformat(self, text: str) -> datetime:
        return datetime.fromisoformat(text)


@pytest.fixture
def limit() -> float:
    return 1000.0


def format_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


# --- what is dropped


def test_a_report_is_dropped_once_a_later_round_of_its_federation_was_answered(ledger: Ledger) -> None:
    sent = {round: ledger.release_once(key(round), draw) for round in (1, 2, 3)}
    other = ledger.release_once(key(1, federation="south"), draw)
    heads = [entry.hash for entry in ledger.entries()]
    assert ledger.compactable(NOW) == ledger.compact(NOW) == Freed(2, 10_000)
    for round in (1, 2):
        with pytest.raises(ReportCompacted, match=f"round {round}"):
            ledger.replay(key(round))
        with pytest.raises(ReportCompacted):
            ledger.release_once(key(round), lambda: pytest.fail("a second draw"))
    assert ledger.replay(key(3)) == sent[3]
    assert ledger.replay(key(1, federation="south")) == other, "another federation's rounds acknowledge nothing here"
    assert ledger.standing("wards").spent == 4 * EPSILON
    assert ledger.holdings() == Holdings(2, 10_000, 2)
    after = ledger.entries()
    assert [entry.hash for entry in after[:-1]] == heads
    assert after[-1].event == Compacted(((3, 4),), 10_000)
    assert ledger.verify(expected_head=heads[2]) == after[-1]


def test_what_was_dropped_is_not_dropped_again_and_adds_no_entry(ledger: Ledger) -> None:
    for round in (1, 2):
        ledger.release_once(key(round), draw)
    ledger.compact(NOW)
    head = ledger.head()
    assert ledger.compact(NOW) == Freed(0, 0)
    assert ledger.head() == head


def test_a_report_is_kept_for_the_stated_time_after_its_round_was_over(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino.privacy.ledger.datetime", clock := Clock())
    ledger.release_once(key(1), draw)
    clock.days = 10
    ledger.release_once(key(2), draw)
    clock.days = 12.9
    assert ledger.compact(timedelta(days=3)) == Freed(0, 0), "12.9 days old, and over for 2.9"
    clock.days = 13.1
    assert ledger.compact(timedelta(days=3)) == Freed(1, 5_000)
    clock.days = 1000
    assert ledger.compact(timedelta(days=3)) == Freed(0, 0), "nothing says that the last round is over"


def test_without_acknowledgement_only_who_says_so_drops(ledger: Ledger) -> None:
    ledger.release_once(key(1), draw)
    assert ledger.compact(NOW) == Freed(0, 0)
    assert ledger.compact(timedelta(days=1), unacknowledged=True) == Freed(0, 0)
    assert ledger.compact(NOW, unacknowledged=True) == Freed(1, 5_000)
    with pytest.raises(ReportCompacted):
        ledger.replay(key(1))


def test_two_reports_of_one_round_do_not_acknowledge_each_other(ledger: Ledger) -> None:
    for plan in ("ab", "cd"):
        ledger.release_once(ReportKey("wards", "flower 7", 0, plan), draw)
    assert ledger.compactable(NOW) == Freed(0, 0)


def test_an_empty_report_has_nothing_to_drop_and_stays(ledger: Ledger) -> None:
    ledger.release_once(key(0), lambda: (draw()[0], b""))
    ledger.release_once(key(1), draw)
    assert ledger.compact(NOW) == Freed(0, 0)
    assert ledger.replay(key(0)) == b""


def test_a_negative_age_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="-1"):
        ledger.compact(timedelta(days=-1))


def test_the_bytes_of_a_dropped_report_may_still_be_recorded_again_and_others_not(ledger: Ledger) -> None:
    release, report = draw()
    first = ledger.record(key(1), release, report)
    ledger.release_once(key(2), draw)
    ledger.compact(NOW)
    assert ledger.record(key(1), release, report) == first
    with pytest.raises(InvalidInput, match="a second draw"):
        ledger.record(key(1), release, b"other")


# --- the file


def test_the_file_shrinks_also_that_of_an_older_ledger(path: Path) -> None:
    Ledger.create(path).close()
    with closing(sqlite3.connect(path)) as connection:  # as ledgers were made before they could shrink
        connection.execute("PRAGMA auto_vacuum = 0")
        connection.execute("VACUUM")
    for _ in range(2):  # the first time it is written anew, then its free pages are cut off
        with Ledger.open(path) as ledger:
            ledger.set_budget("wards", Budget(limit=1000.0))
            last = ledger.entries()[-1].sequence
            for round in range(last, last + 20):
                ledger.release_once(key(round), lambda: (draw()[0], os.urandom(50_000)))
            full = path.stat().st_size
            assert ledger.compact(NOW).not_shrunk == ""
        assert full > 20 * 50_000
        assert path.stat().st_size < 50_000 + 45 * 4096, "the last report, and a page for each entry at most"
        with Ledger.open(path) as ledger:
            ledger.verify()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_free_pages_that_a_crash_left_are_cut_off_by_the_next_compaction(
    path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for round in range(20):
        ledger.release_once(key(round), draw)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "shrink", lambda _: None)
        ledger.compact(NOW)
    full = path.stat().st_size
    assert ledger.compact(NOW) == Freed(0, 0)
    assert path.stat().st_size < 0.5 * full


def test_a_file_that_cannot_shrink_is_said_so_and_is_whole(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Database) -> None:
        raise LedgerUnavailable("the disk is full")

    monkeypatch.setattr(Database, "shrink", full)
    for round in range(3):
        ledger.release_once(key(round), draw)
    assert ledger.compact(NOW) == Freed(2, 10_000, "the disk is full")
    assert ledger.verify().event == Compacted(((3, 4),), 10_000)


def test_a_ledger_has_the_first_format_until_it_is_compacted(path: Path, ledger: Ledger) -> None:
    for round in (1, 2):
        ledger.release_once(key(round), draw)
    ledger.compact(timedelta(days=1))
    assert format_of(path) == 1, "an older Sordino can read it"
    ledger.compact(NOW)
    assert format_of(path) == 2, "an older Sordino says that it cannot"


def test_another_process_sees_what_was_dropped(path: Path, ledger: Ledger) -> None:
    with Ledger.open(path) as other:
        for round in (1, 2):
            ledger.release_once(key(round), draw)
        assert other.replay(key(1)) is not None
        ledger.compact(NOW)
        with pytest.raises(ReportCompacted):
            other.replay(key(1))
        other.release_once(key(3), draw)
        assert other.compact(NOW) == Freed(1, 5_000)
        assert ledger.holdings() == other.holdings() == Holdings(1, 5_000, 2)


# --- tampering


def test_entries_cannot_be_changed_through_sqlite_after_a_compaction(path: Path, ledger: Ledger) -> None:
    for round in (1, 2):
        ledger.release_once(key(round), draw)
    ledger.compact(NOW)
    ledger.close()
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute("UPDATE entries SET report = NULL")


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE entries SET report = NULL WHERE sequence = 5",  # dropped, and no compaction says so
        "UPDATE entries SET report = x'00' WHERE sequence = 3",  # other bytes in the place of dropped ones
        "UPDATE entries SET report = NULL WHERE sequence = 7",  # of the report after the compaction
        "UPDATE entries SET body = replace(body, '[[3,4]]', '[[3,5]]') WHERE sequence = 6",
        "UPDATE entries SET body = replace(body, '[[3,4]]', '[[4,4]]') WHERE sequence = 6",
        "DELETE FROM entries WHERE sequence = 6",
    ],
)
def test_an_edited_compaction_and_bytes_that_vanish_without_one_are_damage(
    path: Path, ledger: Ledger, edit: str
) -> None:
    for round in (1, 2, 3):
        ledger.release_once(key(round), draw)
    ledger.compact(NOW)  # entry 6, of 3 and 4
    ledger.release_once(key(4), draw)
    ledger.close()
    with Ledger.open(path) as sound:
        sound.verify()
    edit_behind_the_triggers(path, edit)
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)


def test_dropped_bytes_that_are_back_are_damage_though_they_fit_their_hash(path: Path, ledger: Ledger) -> None:
    sent = ledger.release_once(key(1), draw)
    ledger.release_once(key(2), draw)
    ledger.compact(NOW)
    ledger.close()
    edit_behind_the_triggers(path, f"UPDATE entries SET report = x'{sent.hex()}' WHERE sequence = 3")
    with pytest.raises(LedgerDamaged, match="entry 3"):
        Ledger.open(path)


def test_damage_that_another_process_does_is_found_again_at_every_look(path: Path, ledger: Ledger) -> None:
    with Ledger.open(path) as other:
        ledger.release_once(key(1), draw)
        edit_behind_the_triggers(path, "UPDATE entries SET report = NULL WHERE sequence = 3")
        for _ in range(2):
            with pytest.raises(LedgerDamaged, match="entry 3"):
                other.replay(key(1))


@pytest.mark.parametrize(
    ("entries", "size"),
    [((), 1), (((3, 2),), 1), (((0, 2),), 1), (((3, 4), (4, 5)), 1), (((5, 6), (3, 4)), 1), (((3, 4),), 0)],
)
def test_a_compaction_names_rising_ranges_and_some_bytes(entries: tuple[tuple[int, int], ...], size: int) -> None:
    with pytest.raises(InvalidInput):
        Compacted(entries, size)


# --- any history

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.sampled_from(["north", "south"])),
        st.tuples(st.just("again"), st.integers(0, 20)),
        st.tuples(st.just("compact"), st.sampled_from([False, False, True])),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=30, deadline=None)
@given(ACTIONS)
def test_in_any_history_a_key_is_drawn_once_and_the_chain_and_the_costs_stay(actions: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger = Ledger.create(path)
        ledger.set_budget("wards", Budget(limit=1000.0))
        rounds: dict[object, int] = {}
        sent: dict[ReportKey, bytes | None] = {}  # None: dropped
        hashes = [entry.hash for entry in ledger.entries()]
        for action, given in actions:
            if action == "answer":
                rounds[given] = rounds.get(given, 0) + 1
                own = key(rounds[given], federation=str(given))
                sent[own] = ledger.release_once(own, draw)
            elif action == "again" and sent:
                asked = list(sent)[int(str(given)) % len(sent)]
                if sent[asked] is None:
                    with pytest.raises(ReportCompacted):
                        ledger.release_once(asked, draw)
                else:
                    assert ledger.release_once(asked, draw) == sent[asked]
            elif action == "compact":
                over = {each for each in sent if given or each.round < rounds[each.federation]}
                due = {each for each in over if sent[each] is not None}
                assert ledger.compact(NOW, unacknowledged=bool(given)).reports == len(due)
                sent |= dict.fromkeys(due)
            elif action == "reopen":
                ledger.close()
                ledger = Ledger.open(path)
            now = [entry.hash for entry in ledger.entries()]
            assert now[: len(hashes)] == hashes
            hashes = now
            assert ledger.standing("wards").spent == EPSILON * len(sent)
            kept = [report for report in sent.values() if report is not None]
            assert ledger.holdings() == Holdings(len(kept), 5_000 * len(kept), len(sent) - len(kept))
        ledger.verify(expected_head=hashes[-1])
        ledger.close()
        with Ledger.open(path) as again:
            assert again.head() == hashes[-1]
