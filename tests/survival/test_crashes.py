"""A coordinator that stops in the middle of any step, in one process: it ends at the same bits all the same."""

import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino
from sordino.channels.secure_sum import plan_in
from sordino.client.client import Client
from sordino.client.invitation import Invitation
from sordino.errors import InvalidInput
from sordino.fleets.interface import Reply
from sordino.learning.stacked_model import Execution
from sordino.privacy.ledger import Ledger, Released
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.runs.coordinator import RoundOutcome
from sordino.runs.federation import wire
from sordino.runs.journal import NAME as NAME_OF_JOURNAL
from sordino.runs.journal import JournalStore, read_past
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome
from sordino.runs.serving import CoordinatorSetup, has_run, read_notes, serve
from sordino.runs.stopping import TooFewClients
from sordino.storage.files import NotWritten
from sordino.storage.sqlite import Database
from sordino.wire.messages import Plan, answer_to
from tests.client import people
from tests.client.people import NAME, DirectFleet

CHANGES: dict[str, Any] = {"split.clients": 2, "data.train_limit": 20, "rounds.count": 2}
AT_ONCE = {"reports_days": 0}  #: clients drop a report's bytes once its round is over, and are never asked for them


class Crash(BaseException):
    """The machine stops: no code of the coordinator may act on it."""


class Points:
    """Counts the points at which the machine could stop, and stops it at one of them."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.count, self._paused = at, 0, False

    def pass_by(self) -> None:
        if self._paused:
            return
        self.count += 1
        if self.count == self.at:
            raise Crash

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused = True
        yield
        self._paused = False


@contextmanager
def stopping(points: Points) -> Iterator[None]:
    """Stop in the middle of a write, before a transaction is committed, and after it."""
    write, transaction = os.write, Database.transaction

    def torn(descriptor: int, data: Any) -> int:
        try:
            points.pass_by()
        except Crash:
            write(descriptor, bytes(data)[: len(data) // 2])
            raise
        return write(descriptor, data)

    @contextmanager
    def watched(own: Database, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        with transaction(own, begin):
            yield
            if own.path.name == NAME_OF_JOURNAL:
                points.pass_by()
        if own.path.name == NAME_OF_JOURNAL:
            points.pass_by()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", torn)
        patch.setattr(os, "fsync", lambda _: None)  # a killed process loses nothing that it wrote
        patch.setattr(Database, "transaction", watched)
        yield


class Fleet(DirectFleet):
    """Clients of this process; the coordinator may stop before and after each answer."""

    def __init__(self, clients: Mapping[int, Client], points: Points) -> None:
        super().__init__(clients)
        self._points = points

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: Any) -> Generator[Reply]:
        self._points.pass_by()
        for number, message in messages.items():
            with self._points.paused():  # what a client writes is another machine's
                response = self.clients[number].reply(step, message)
                if response.receipt:
                    self.clients[number].receive_receipt(NAME, response.receipt)
            self._points.pass_by()
            yield Reply(number, response.payload)


@contextmanager
def awake(place: Path, recipe: Recipe) -> Iterator[dict[int, Client]]:
    """The clients in their folders, with a simulation's randomness."""
    number = recipe.number_of_clients
    found = {
        k: Client.open(place / str(k), randomness=people.seeded(recipe.seed, k), execution=Execution())
        for k in range(number)
    }
    try:
        yield found
    finally:
        for client in found.values():
            client.close()


def born(place: Path, recipe: Recipe) -> None:
    for client in people.members(place, wire(recipe), keep=AT_ONCE).values():
        client.close()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of two clients that have joined and answered nothing yet: to be copied."""
    place = tmp_path_factory.mktemp("clients")
    born(place, people.recipe(CHANGES))
    return place


def copied(clients: Path, place: Path) -> Path:
    return Path(shutil.copytree(clients, place))


def left(folder: Path) -> dict[str, Any]:
    """All that a run came to, but for times and for how often it was stopped."""
    result = json.loads((folder / "result.json").read_text())
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "statement": (folder / "statement.json").read_bytes(),
        "result": {**result, "seconds": None},
        "rounds": [{**line, "seconds": None, "restarts": None} for line in rounds],
    }


def released(folder: Path) -> list[int]:
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        return [entry.event.key.round for entry in ledger.entries() if isinstance(entry.event, Released)]


def kept(folder: Path) -> list[int]:
    """The rounds with reports of which the bytes are kept."""
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        found = [entry for entry in ledger.entries() if entry.size]
    return [entry.event.key.round for entry in found if isinstance(entry.event, Released)]


def attempt(place: Path, recipe: Recipe, points: Points) -> Outcome:
    with awake(place, recipe) as clients, stopping(points):
        return serve(
            recipe, Fleet(clients, points), place / "run", CoordinatorSetup(NAME), resume=has_run(place / "run")
        )


def test_a_coordinator_that_stops_anywhere_goes_on_to_the_same_bits(tmp_path, clients):
    given = people.recipe(CHANGES)
    copied(clients, tmp_path / "peace")
    peace = Points()
    whole = attempt(tmp_path / "peace", given, peace)
    simulated = sordino.run(given)
    assert np.array_equal(whole.parameters, simulated.parameters)
    expected = left(tmp_path / "peace/run")
    assert peace.count > 30
    for number in range(1, peace.count + 1):
        place = copied(clients, tmp_path / str(number))
        with pytest.raises(Crash):
            attempt(place, given, Points(number))
        attempt(place, given, Points())
        assert left(place / "run") == expected, f"point {number}"
        assert [released(place / str(k)) for k in range(2)] == [[1, 2], [1, 2]], f"point {number}"
        assert [kept(place / str(k)) for k in range(2)] == [[2], [2]], f"point {number}"


def test_a_run_that_ended_because_nobody_was_left_is_over_and_nobody_is_asked_again(tmp_path):
    given = people.recipe(CHANGES)
    for client in people.members(tmp_path, wire(given), limit=1.5 * people.COST).values():
        client.close()
    first = attempt(tmp_path, given, Points())
    assert "all 2 clients declined in round 2" in first.result.stopped
    before = left(tmp_path / "run")
    (tmp_path / "run/report.html").unlink()  # killed before its last file: the run is over all the same
    with closing(sqlite3.connect(tmp_path / "run/checkpoint/state.sqlite")) as book:
        history = [book.execute(f"SELECT * FROM {table}").fetchall() for table in ("starts", "plans", "rounds")]
        again = serve(given, DirectFleet({}), tmp_path / "run", CoordinatorSetup(NAME), resume=True)
        assert again.result.stopped == first.result.stopped
        assert left(tmp_path / "run") == before and (tmp_path / "run/report.html").is_file()
        after = [book.execute(f"SELECT * FROM {table}").fetchall() for table in ("starts", "plans", "rounds")]
    assert after == history


def test_a_coordinator_that_stops_again_and_again_gets_there(tmp_path, clients):
    """Every attempt comes a few steps further than the one before."""
    given = people.recipe(CHANGES)
    attempt(copied(clients, tmp_path / "peace"), given, Points())
    copied(clients, tmp_path / "parts")
    stops = 0
    while True:
        try:
            attempt(tmp_path / "parts", given, Points(11))
        except Crash:
            stops += 1
            assert stops < 30
            continue
        break
    assert stops > 3
    lines = (tmp_path / "parts/run/metrics.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["restarts"] for line in lines) > 0
    assert left(tmp_path / "parts/run") == left(tmp_path / "peace/run")
    assert [released(tmp_path / "parts" / str(k)) for k in range(2)] == [[1, 2], [1, 2]]


def summed() -> Recipe:
    """Reports are seen in secure sums alone, of five steps each."""
    return people.recipe({**CHANGES, "split.clients": 4, "data.train_limit": 40, "method.channel": {"kind": "summed"}})


def prepared() -> Recipe:
    """Clients randomise their records once, before the first round."""
    return people.method_recipe("ldpfl").with_({"split.clients": 2, "rounds.count": 2})


@pytest.mark.parametrize(("made", "first"), [(summed, [1, 2]), (prepared, [0, 1, 2])], ids=["summed", "prepared"])
def test_what_takes_several_steps_goes_on_from_any_of_them(made, first, tmp_path):
    given = made()
    unproven = ["labels", "randomised features"]  # of which nothing is proven as simulations compute them
    tables = {"unproven": unproven, "budget": {"adjacency": "record-replace"}} if made is prepared else {}
    for client in people.members(tmp_path / "clients", wire(given), keep=AT_ONCE, **tables).values():
        client.close()
    peace = Points()
    whole = attempt(copied(tmp_path / "clients", tmp_path / "peace"), given, peace)
    assert np.array_equal(whole.parameters, sordino.run(given).parameters)
    for number in range(7, peace.count, 9):
        place = copied(tmp_path / "clients", tmp_path / str(number))
        with pytest.raises(Crash):
            attempt(place, given, Points(number))
        again = attempt(place, given, Points())
        assert np.array_equal(again.parameters, whole.parameters), f"point {number}"
        assert all(record.counted for record in again.rounds), f"point {number}"
        everybody = [place / str(k) for k in range(given.number_of_clients)]
        assert [released(folder) for folder in everybody] == [first] * len(everybody)
        assert all(kept(folder) == first[-1:] for folder in everybody), f"point {number}"


def test_a_sum_that_clients_do_not_begin_anew_costs_its_round_and_not_the_run(tmp_path):
    given = summed()
    born(tmp_path, given)
    with pytest.raises(Crash):
        attempt(tmp_path, given, Points(15))

    class Wary(DirectFleet):
        def exchange(self, step, messages, deadline):
            for number, message in messages.items():
                if step == "keys" and plan_in(people.unsigned(message)).round == 1:
                    yield Reply(number, answer_to(plan_in(people.unsigned(message)), None))
                else:
                    yield Reply(number, self.clients[number].answer(step, message))

    with awake(tmp_path, given) as there:
        outcome = serve(given, Wary(there), tmp_path / "run", resume=True)
    assert [record.counted for record in outcome.rounds] == [False, True]
    with closing(sqlite3.connect(tmp_path / "run/checkpoint/state.sqlite")) as journal:
        (why,) = journal.execute("SELECT why_lost FROM rounds WHERE round = 1").fetchone()
    assert "went out again after a restart, and all clients declined" in why


def test_who_does_not_begin_a_sum_anew_may_have_sent_its_report_before_the_restart(tmp_path):
    given = summed()
    born(tmp_path, given)
    with pytest.raises(Crash):
        attempt(tmp_path, given, Points(15))

    class Wary(DirectFleet):
        def exchange(self, step, messages, deadline):
            for number, message in messages.items():
                if step == "keys" and number == 0 and plan_in(people.unsigned(message)).round == 1:
                    yield Reply(number, answer_to(plan_in(people.unsigned(message)), None))
                else:
                    yield Reply(number, self.clients[number].answer(step, message))

    with awake(tmp_path, given) as there:
        outcome = serve(given, Wary(there), tmp_path / "run", resume=True)
    assert [record.declined for record in outcome.rounds] == [1, 0]
    assert [budget.reports for budget in outcome.result.budgets] == [2] * 4


def test_whoever_answered_was_reached_whatever_the_fleet_says(tmp_path, clients):
    given, place = people.recipe(CHANGES), copied(clients, tmp_path / "lying")

    class Lying(DirectFleet):
        def exchange(self, step, messages, deadline):
            yield from (Reply(client, reached=False) for client in messages)
            yield from super().exchange(step, messages, deadline)

    with awake(place, given) as there:
        outcome = serve(given, Lying(there), place / "run", CoordinatorSetup(NAME))
    assert [record.reported for record in outcome.rounds] == [2, 2]
    assert [budget.reports for budget in outcome.result.budgets] == [2, 2]


def test_a_clients_own_words_are_kept_short_and_printable(tmp_path, clients):
    given, place = people.recipe(CHANGES), copied(clients, tmp_path / "rude")

    class Rude(DirectFleet):
        def exchange(self, step, messages, deadline):
            for number, message in messages.items():
                declined = answer_to(Plan.decode(people.unsigned(message)), None)
                answer = declined if number else self.clients[0].answer(step, message)
                yield Reply(number, answer, "\x1b[2J\n" + "no " * 20_000)

    with awake(place, given) as there:
        serve(given, Rude(there), place / "run", CoordinatorSetup(NAME))
    (said,) = read_past(RunFolder(place / "run")).spent[0].declined.values()
    assert said.isprintable() and said.startswith(" [2J no no") and len(said) == 500


# --- a full disk ------------------------------------------------------------------------------------------------------


def full_disk(patch: pytest.MonkeyPatch, at: int) -> None:
    """No room for the `at`-th write, nor for any after it."""
    write, count = os.write, 0

    def refused(descriptor: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count >= at:
            write(descriptor, bytes(data)[:3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    patch.setattr(os, "write", refused)


@pytest.mark.parametrize("at", [3, 6, 8, 11])
def test_a_full_disk_stops_the_run_with_the_remedy_and_loses_nothing(tmp_path, clients, at):
    given = people.recipe(CHANGES)
    attempt(copied(clients, tmp_path / "peace"), given, Points())
    place = copied(clients, tmp_path / "full")
    with awake(place, given) as there, pytest.MonkeyPatch.context() as patch:
        full_disk(patch, at)
        with pytest.raises(NotWritten, match="No space left"):
            serve(given, DirectFleet(there), place / "run", CoordinatorSetup(NAME))
    attempt(place, given, Points())
    assert left(place / "run") == left(tmp_path / "peace/run")
    assert [released(place / str(k)) for k in range(2)] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("round", [1, 2])
def test_a_full_disk_in_the_middle_of_a_transaction_loses_nothing_either(tmp_path, clients, round):
    given = people.recipe(CHANGES)
    attempt(copied(clients, tmp_path / "peace"), given, Points())
    place = copied(clients, tmp_path / "full")
    end = JournalStore.end

    def no_room(own: JournalStore, outcome: RoundOutcome, *more: object) -> None:
        if outcome.plan.round == round:
            own._db.execute("PRAGMA max_page_count = 1")  # no more pages than there are
            outcome = replace(outcome, why_lost="x" * 20_000)  # which would need some
        end(own, outcome, *more)

    with awake(place, given) as there, pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalStore, "end", no_room)
        with pytest.raises(NotWritten, match=r"state\.sqlite.*disk is full.*--resume"):
            serve(given, DirectFleet(there), place / "run", CoordinatorSetup(NAME))
    attempt(place, given, Points())
    assert left(place / "run") == left(tmp_path / "peace/run")
    assert [released(place / str(k)) for k in range(2)] == [[1, 2], [1, 2]]


# --- what goes on, and what does not ----------------------------------------------------------------------------------


class Stop(Observer):
    """Interrupts a run after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, record, attendance):
        if record.round == self.after:
            raise KeyboardInterrupt


@pytest.fixture
def halted(tmp_path: Path, clients: Path) -> Path:
    """A run that was interrupted after its first round, beside its clients."""
    given, place = people.recipe(CHANGES), copied(clients, tmp_path / "halted")
    with awake(place, given) as there, pytest.raises(KeyboardInterrupt):
        notes = {"sockets": ["a"]}
        serve(given, DirectFleet(there), place / "run", CoordinatorSetup(NAME, notes=notes), observer=Stop(1))
    return place


def test_a_run_remembers_its_name_and_its_callers_notes(halted, tmp_path):
    assert has_run(halted / "run") and not has_run(halted)
    assert read_notes(halted / "run") == {"sockets": ["a"], "federation": NAME}
    sordino.run(people.recipe(CHANGES), folder=tmp_path / "simulated")
    assert read_notes(tmp_path / "simulated") is None


def test_another_name_another_recipe_and_a_simulation_are_refused(halted, tmp_path):
    given = people.recipe(CHANGES)
    with awake(halted, given) as there:
        fleet = DirectFleet(there)
        with pytest.raises(InvalidInput, match="elsewhere"):
            serve(given, fleet, halted / "run", CoordinatorSetup("elsewhere"), resume=True)
        with pytest.raises(InvalidInput, match="another recipe"):
            serve(people.recipe({**CHANGES, "seed": 8}), fleet, halted / "run", resume=True)
        with pytest.raises(InvalidInput, match="already"):
            serve(given, fleet, halted / "run")
        sordino.run(given, folder=tmp_path / "simulated")
        with pytest.raises(InvalidInput, match="holds a simulation"):
            serve(given, fleet, tmp_path / "simulated", resume=True)
        with pytest.raises(InvalidInput, match="real clients"):
            sordino.run(given, folder=halted / "run", resume=True)
        assert serve(given, fleet, halted / "run", resume=True).result.rounds == 2


def test_metrics_follow_the_journal_whatever_happened_to_them(halted):
    metrics = halted / "run/metrics.jsonl"
    kept = metrics.read_bytes()
    for spoilt in (b"", kept + kept.replace(b'"round": 1', b'"round": 2'), kept[:-20]):
        metrics.write_bytes(spoilt)
        with awake(halted, people.recipe(CHANGES)) as there, pytest.raises(KeyboardInterrupt):
            serve(people.recipe(CHANGES), Dead(there), halted / "run", resume=True)
        assert metrics.read_bytes() == kept


class Dead(DirectFleet):
    """Ends the process that asks it."""

    def exchange(self, *_: Any) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["state-000001.safetensors", "plan-000002.bin"])
@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!")])
def test_a_damaged_file_is_named_and_nothing_is_sent(halted, name, spoil):
    given = people.recipe(CHANGES)
    with awake(halted, given) as there:
        with pytest.raises(KeyboardInterrupt):
            serve(given, Dead(there), halted / "run", resume=True)  # the second plan is on disk now
        spoil(halted / "run/checkpoint" / name)
        with pytest.raises(InvalidInput, match=name):
            serve(given, DirectFleet(there), halted / "run", resume=True)
    assert [released(halted / str(k)) for k in range(2)] == [[1], [1]]


def test_a_plan_that_is_on_disk_goes_out_again_as_it_was(halted):
    """Even if a newer program would plan otherwise: clients have perhaps answered the old bytes."""
    given = people.recipe(CHANGES)
    with awake(halted, given) as there:
        with pytest.raises(KeyboardInterrupt):
            serve(given, Dead(there), halted / "run", resume=True)
        before = (halted / "run/checkpoint/plan-000002.bin").read_bytes()
        sent: list[bytes] = []

        class Listening(DirectFleet):
            def exchange(self, step, messages, deadline):
                sent.extend(map(people.unsigned, messages.values()))
                yield from super().exchange(step, messages, deadline)

        with pytest.MonkeyPatch.context() as patch:
            method = type(wire(given).method)
            honest = method.plan

            def other(own, state, name):
                return honest(own, replace(state, parameters=state.parameters + 1), name)

            patch.setattr(method, "plan", other)
            serve(given, Listening(there), halted / "run", resume=True)
    assert sent == [before, before]
    with closing(sqlite3.connect(halted / "run/checkpoint/state.sqlite")) as journal:
        assert journal.execute("SELECT round, sent FROM plans").fetchall() == [(1, 1), (2, 2)]
        assert journal.execute("SELECT count(*) FROM starts").fetchone() == (3,)


def test_another_programs_database_is_refused(halted):
    path = halted / "run/checkpoint/state.sqlite"
    path.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
    with awake(halted, people.recipe(CHANGES)) as there, pytest.raises(InvalidInput, match="another program"):
        serve(people.recipe(CHANGES), DirectFleet(there), halted / "run", resume=True)


def first_wire(run: Path) -> None:
    """Let a run look as one that began in the first version of the wire format, which wrote no version down."""
    with closing(sqlite3.connect(run / "checkpoint/state.sqlite")) as journal, journal:
        journal.execute("DELETE FROM about WHERE key = 'wire'")


def test_an_unfinished_run_of_another_wire_format_is_refused_with_the_remedy(halted):
    first_wire(halted / "run")
    given = people.recipe(CHANGES)
    with awake(halted, given) as there, pytest.raises(InvalidInput, match="version 1"):
        serve(given, DirectFleet(there), halted / "run", resume=True)
    assert [released(halted / str(k)) for k in range(2)] == [[1], [1]]
    assert read_notes(halted / "run") == {"sockets": ["a"], "federation": NAME}


def test_a_finished_run_of_another_wire_format_opens(halted):
    given = people.recipe(CHANGES)
    with awake(halted, given) as there:
        done = serve(given, DirectFleet(there), halted / "run", resume=True)
        first_wire(halted / "run")
        assert serve(given, Dead(there), halted / "run", resume=True).result == done.result


# --- too few ----------------------------------------------------------------------------------------------------------


class Deaf(DirectFleet):
    """Clients that do not take invitations, and some that do not answer."""

    def __init__(self, clients: Mapping[int, Client], silent: frozenset[int] = frozenset()) -> None:
        super().__init__(clients)
        self.silent, self.invited = silent, dict[int, bytes]()

    def invite(self, invitations: Mapping[int, bytes]) -> dict[int, str]:
        self.invited = dict(invitations)
        return dict.fromkeys(self.silent, "its owner has not agreed")

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: Any) -> Generator[Reply]:
        for number, message in messages.items():
            if number not in self.silent:
                reply = self.clients[number].reply(step, message)
                yield Reply(number, reply.payload, receipt=reply.receipt)


def test_too_few_at_the_start_are_refused_with_the_remedy_and_the_folder_stays_free(tmp_path, clients):
    given = people.recipe({**CHANGES, "rounds.quorum": 2})
    place = tmp_path / "place"
    born(place, given)
    with awake(place, given) as there:
        with pytest.raises(TooFewClients, match=r"1 of 2.*quorum is 2.*client 1:"):
            serve(given, Deaf(there, frozenset({1})), place / "run", CoordinatorSetup(NAME))
        assert not has_run(place / "run")
        assert serve(given, Deaf(there), place / "run", CoordinatorSetup(NAME)).result.rounds == 2


def test_too_few_for_some_rounds_pause_the_run_and_it_goes_on_when_they_are_back(tmp_path, clients):
    given = people.recipe({**CHANGES, "rounds.quorum": 2, "rounds.count": 6})
    place = tmp_path / "place"
    born(place, given)
    with awake(place, given) as there:
        fleet = Deaf(there)
        fleet.invite = lambda invitations: {}  # type: ignore[method-assign]
        fleet.silent = frozenset({1})
        with pytest.raises(TooFewClients, match=r"3 rounds.*quorum is 2.*--resume"):
            serve(given, fleet, place / "run", CoordinatorSetup(NAME))
        assert not (place / "run/result.json").exists()
        back = Deaf(there)
        outcome = serve(given, back, place / "run", resume=True)
    assert [record.counted for record in outcome.rounds] == [False] * 3 + [True] * 3
    assert [record.reported for record in outcome.rounds] == [1] * 3 + [2] * 3
    assert [released(place / str(k)) for k in range(2)] == [[1, 2, 3, 4, 5, 6], [4, 5, 6]]
    own = [Invitation.decode(message) for message in back.invited.values()]
    assert own[0].receipt != "" and own[1].receipt == ""  # what each gave before the restart
    assert sorted(read_past(RunFolder(place / "run")).receipts) == [0, 1]
