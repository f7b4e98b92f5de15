"""The client's folder: settings, offers, what was made once, what is kept from round to round, and receipts."""

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino.client.client import Client, fresh
from sordino.client.folder import Preparations
from sordino.client.invitation import CommonTerms, Invitation
from sordino.client.membership import Membership
from sordino.client.own_records import OwnRecords
from sordino.client.refusal import Reason, Refused
from sordino.client.settings import OwnData, Settings
from sordino.client.sum_progress import SumFolder
from sordino.errors import InvalidInput
from sordino.learning import datasets
from sordino.learning.cohort import CohortTrainer
from sordino.privacy.guarantee import Derived
from sordino.privacy.ledger import Released
from sordino.wire.receipt import RECEIPT_BYTES, Seal
from tests.client import people
from tests.client.people import COST, NAME, body, invitation, joined, plans, recipe, settings, signed
from tests.power_cut import watched

# --- the folder


def test_the_folder_is_readable_by_a_person_and_by_its_owner_only(tmp_path):
    with joined(tmp_path / "a") as client:
        folder = client.folder
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "identity.json").stat().st_mode) == 0o600
        assert Settings.read(folder / "client.toml") == client.settings == settings()
        place = folder / "federations" / NAME
        assert (place / "recipe.toml").read_text() == invitation().recipe
        assert "What digits-demo would learn of you" in (place / "statement.txt").read_text()
        assert "joined digits-demo as client 0" in (folder / "log.txt").read_text()


def test_every_name_in_the_folder_is_durable_and_so_are_those_above_it(tmp_path, monkeypatch):
    lost = watched(monkeypatch)
    with joined(tmp_path / "deep" / "a") as client:
        assert lost(tmp_path) == set()
        sums = SumFolder(tmp_path / "deep" / "a" / "federations" / NAME / "sum")
        sums.begin(plans()(1))
        Preparations(client.folder / "prepared").note_releases("what", [])
        assert lost(tmp_path) == set()


def test_every_client_has_an_identity_of_its_own_and_keeps_it(tmp_path):
    with people.client(tmp_path / "a") as one, people.client(tmp_path / "b") as other:
        assert one.identity.name == "a"
        assert one.identity.id != other.identity.id
    with Client.open(tmp_path / "a") as again:
        assert again.identity == one.identity


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not empty"):
        people.client(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"budget": {"limit": 0.0}}, "budget.limit"),
        ({"budget": {"limit": 1.0, "adjacency": "everything"}}, "unknown adjacency 'everything'"),
        ({"budget": {"limit": 1.0}, "consents": {"claim": True}}, "did you mean 'claimed'"),
        ({"budget": {"limit": 1.0}, "data": {"source": "digits", "name": "../x"}}, "data.name"),
        ({}, "budget: missing"),
    ],
    ids=["limit", "adjacency", "consent", "name", "none"],
)
def test_bad_settings_are_refused_in_words(tables, said):
    with pytest.raises(InvalidInput, match=said):
        Settings.of({"data": {"source": "digits"}, **tables})


@pytest.mark.parametrize("rows", ["5-2", "0-9999", "a", "-1", ""], ids=repr)
def test_bad_rows_are_refused(tmp_path, rows):
    with pytest.raises(InvalidInput, match="rising list"):
        OwnRecords.read(settings(rows).data, tmp_path)


def test_edited_settings_are_written_into_the_ledger(tmp_path):
    people.client(tmp_path / "a").close()
    path = tmp_path / "a" / "client.toml"
    path.write_text(
        path.read_text().replace("limit = 1000000.0", "limit = 5").replace("unproven = []", 'unproven = ["x"]')
    )
    with Client.open(tmp_path / "a") as client:
        assert client.standing.budget is not None and client.standing.budget.limit == 5
        assert client.standing.consents.unproven == {"x"}
    path.write_text(path.read_text().replace('["x"]', "[]"))
    with Client.open(tmp_path / "a") as client:
        assert client.standing.consents.unproven == frozenset()
        before = len(client.ledger.entries())
    with Client.open(tmp_path / "a") as client:
        assert len(client.ledger.entries()) == before


def test_two_processes_do_not_answer_for_one_client(tmp_path):
    with joined(tmp_path / "a") as one, Client.open(tmp_path / "a") as other:
        body(one.answer("report", signed(plans()(1))))
        assert other.reply("report", signed(plans()(2))).reason == Reason.UNAVAILABLE.value
        assert other.standing.spent == pytest.approx(COST)


def test_own_tables_need_no_test_part(tmp_path):
    rows = "\n".join(f"{k / 10},{k % 3},{'ab'[k % 2]}" for k in range(12))
    (tmp_path / "own.csv").write_text(f"x,y,kind\n{rows}\n")
    own = Settings.of(
        {
            "data": {"source": "../own.csv", "label": "kind", "classes": ["a", "b"]},
            "budget": {"limit": 1.0},
        }
    )
    with people.client(tmp_path / "a", own) as client:
        found = client.records((2,))
        assert (len(found), found.shape, found.classes) == (12, (2,), ("a", "b"))
        with pytest.raises(Refused, match="they must agree"):
            client.join(invitation().encode())


def test_own_records_need_no_test_part_whatever_they_lie_in(tmp_path):
    x, y = np.arange(24, dtype=np.uint8).reshape(6, 2, 2), np.arange(6) % 2
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    np.savez(tmp_path / "train.NPZ", x_train=x, y_train=y)
    (tmp_path / "train.NPZ.npz").rename(tmp_path / "train.NPZ")
    np.savez(tmp_path / "both.npz", x_train=x, y_train=y, x_test=x[:1] + 1, y_test=y[:1])
    for k in range(6):
        (tmp_path / "scans" / "ab"[y[k]]).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "scans" / "ab"[y[k]] / f"{k}.npy", x[k])
    found = [
        OwnRecords.read(OwnData(source=source, classes=("a", "b"), channels=1), tmp_path)
        for source in ("plain.npz", "train.NPZ", "both.npz", "./scans")
    ]
    assert [(len(records), records.shape) for records in found] == [(6, (1, 2, 2))] * 4
    same = [own.examples.x.tolist() for own in found[:3]]
    assert same[0] == same[1] == same[2], "the same records, however the file names them"
    assert found[3].examples.x[:3, 0].tolist() == x[::2].tolist(), "by class"


def test_a_place_with_test_examples_is_not_looked_at(tmp_path):
    (tmp_path / "own.csv").write_text("".join(f"{k},{'ab'[k % 2]}\n" for k in range(10)))
    own = {"source": "own.csv", "label": 1, "classes": ("a", "b")}
    assert len(OwnRecords.read(OwnData(**own, test="absent.csv"), tmp_path)) == 10
    assert 0 < len(OwnRecords.read(OwnData(**own, test=0.5), tmp_path)) < 10, (
        "a share that the owner holds out stays out"
    )


def test_a_hold_out_and_one_row_less_leave_one_record_less_to_train_on(tmp_path):
    lines = [f"{k},{'ab'[k % 2]}\n" for k in range(200)]

    def trained_on(table, **changes):
        (tmp_path / "own.csv").write_text("".join(table))
        own = OwnData(source="own.csv", label=1, classes=("a", "b"), **changes)
        return set(OwnRecords.read(own, tmp_path).examples.x[:, 0].tolist())

    for left in (0, 50, 199):
        apart = trained_on(lines, test=0.2) ^ trained_on(lines[:left] + lines[left + 1 :], test=0.2)
        assert apart <= {float(left)}
    for edge in ({"rows": "0-99"}, {"train_limit": 100}):
        assert len(trained_on(lines, **edge) ^ trained_on(lines[1:], **edge)) == 2, "one is exchanged for another"


def test_rows_beyond_the_limit_of_training_examples_are_refused_in_words(tmp_path):
    (tmp_path / "own.csv").write_text("".join(f"{k},{'ab'[k % 2]}\n" for k in range(100)))
    own = {"source": "own.csv", "label": 1, "classes": ("a", "b"), "train_limit": 10}
    assert len(OwnRecords.read(OwnData(**own, rows="0-9"), tmp_path)) == 10
    for test in (None, 0.2):
        with pytest.raises(InvalidInput, match=r"data\.train_limit"):
            OwnRecords.read(OwnData(**own, rows="0-60", test=test), tmp_path)


def test_a_tables_label_may_be_its_first_column(tmp_path):
    (tmp_path / "own.csv").write_text("\n".join(f"{'ab'[k % 2]},{k / 10},{k % 3}" for k in range(12)) + "\n")
    own = OwnData(source="own.csv", label=0, classes=("a", "b"))
    assert OwnRecords.read(own, tmp_path).shape == (2,)
    with pytest.raises(InvalidInput, match=r"data\.classes.*data\.label"):
        OwnRecords.read(OwnData(source="own.csv"), tmp_path)


def test_a_list_of_keys_says_nothing_where_no_sums_are_made(tmp_path):
    with joined(tmp_path / "a") as client:
        key = client.identity.public
    path = tmp_path / "a" / "client.toml"
    path.write_text(f'{path.read_text()}\n[peers.{NAME}]\n0 = "{key}"\n')
    with Client.open(tmp_path / "a") as client:
        body(client.answer("report", signed(plans()(1))))


# --- invitations and offers


def test_an_invitation_survives_the_wire_and_tells_no_places():
    own = {"source": "/srv/secret/scans.npz", "classes": ["a", "b"], "mean": [0.0], "std": [1.0]}
    given = recipe().with_({"data": own})
    found = CommonTerms.of(given, "demo", datasets.load("digits"), people.KEY.author).invitation(1, people.KEY)
    assert Invitation.decode(found.encode()) == found
    assert "secret" not in found.recipe
    assert 'source = "./scans.npz"' in found.recipe


def test_central_privacy_is_no_federation_for_clients():
    given = {"name": "central-dp", "clip": 1.0, "noise_multiplier": 1.0, "selection": {"kind": "probability", "p": 0.5}}
    central = people.tiny.recipe({"method": given})
    with pytest.raises(InvalidInput, match="noise"):
        invitation(central)


def test_an_offer_says_how_many_rounds_fit(tmp_path):
    with people.client(tmp_path / "a", settings(limit=2.5 * COST)) as client:
        offer = client.offer(invitation().encode())
        assert (offer.fits, offer.rounds, offer.agreed) == (2, 3, False)
        assert "Of 3 rounds your budget allows 2" in offer.to_text()
        assert client.federations() == {}  # to look is not to agree
        assert client.join(invitation().encode()).agreed is False
        assert client.offer(invitation().encode()).agreed is True
        assert client.federations() == {NAME: 0}


def test_only_federations_that_the_settings_allow_are_joined(tmp_path):
    own = settings(federations=["clinics-*", "another"])
    with people.client(tmp_path / "a", own) as client:
        with pytest.raises(Refused, match=r"clinics-\*, another") as caught:
            client.join(invitation().encode())
        assert caught.value.reason is Reason.NOT_AGREED
        client.join(invitation(name="clinics-north").encode())


# --- every method


@pytest.mark.parametrize("name", [name for name in people.METHODS if name != "silo-dp"])
def test_every_method_answers_as_its_simulation_does(tmp_path, name):
    """Integer sums, and so models, are equal to the last bit under injected randomness.

    These clients compute as simulations do, many records at a time, of which nothing is proven for features in floats.
    """
    from sordino.runs.simulation import run

    given = people.method_recipe(name)
    federation = people.wire(given)
    own = {
        "limit": 1e12, "unproven": ["labels", "randomised records", "randomised features"],
        "budget": {"adjacency": people.adjacency(name), "delta": 1e-5},
    }  # fmt: skip
    fleet = people.DirectFleet(people.members(tmp_path, federation, injected=True, **own))
    coordinator = people.coordinator(federation, fleet)
    if federation.method.preparation(NAME) is not None:
        assert coordinator.prepare().reported == [0, 1, 2]
    state = federation.method.init()
    for _ in range(3):
        state, held = coordinator.round(state)
        assert held.attendance.reported == [0, 1, 2], fleet.reasons
    assert np.array_equal(state.parameters, run(given, workers=1).parameters)


def test_fresh_randomness_serves_every_method(tmp_path):
    """Fresh keys refuse to give a word out twice: no method may ask for one."""
    for name in people.METHODS:
        given = people.method_recipe(name)
        budget = {"adjacency": people.adjacency(name), "delta": 1e-5}
        own = settings(limit=1e12, unproven=["labels", "randomised records"], budget=budget)
        with joined(tmp_path / name, given, own) as client:
            of = plans(given)
            if client._member(NAME).prepares:
                assert client.reply("prepare", signed(of(0), "prepare", given=given)).reason == ""
            reply = client.reply("report", signed(of(1), given=given))
            assert reply.reason == "", name


def test_what_a_client_keeps_is_there_after_a_restart(tmp_path):
    """WebFed's noisy count is announced in round 1 and repeated in later rounds."""
    given = people.method_recipe("webfed")
    joined(tmp_path / "a", given, settings(limit=1e12)).close()
    counts = []
    for round in (1, 2, 3):
        with Client.open(tmp_path / "a") as client:
            counts.append(body(client.answer("report", signed(plans(given)(round), given=given)))[:4])
            assert len(list((tmp_path / "a" / "federations" / NAME / "kept").iterdir())) == round
    assert counts[0] == counts[1] == counts[2]


def test_a_method_that_sends_nothing_spends_nothing_and_does_each_round_once(tmp_path):
    given = people.method_recipe("local-only")
    with joined(tmp_path / "a", given) as client:
        of = plans(given)
        first = client.answer("report", signed(of(1), given=given))
        assert body(first) == b""
        kept = sorted((tmp_path / "a" / "federations" / NAME / "kept").iterdir())
        content = kept[0].read_bytes()
        assert client.answer("report", signed(of(1), given=given)) == first
        assert kept[0].read_bytes() == content
        assert client.reply("report", signed(replace(of(1), round=0), given=given)).reason == Reason.NOT_IN_RECIPE.value
        assert client.standing.releases == 0


# --- training that fails


@contextmanager
def failing() -> Iterator[None]:
    """Let training raise, as code does that meets what it cannot compute."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("Expected more than 1 value per channel")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CohortTrainer, "train", fail)
        yield


def test_a_count_announced_in_a_round_whose_training_failed_is_announced_again(tmp_path):
    """Forgotten, it would be another number in the next round: that of a client which never announced one."""
    given = people.method_recipe("webfed")
    with joined(tmp_path / "a", given, settings(limit=1e12)) as client:
        with failing():
            counts = [body(client.answer("report", signed(plans(given)(1), given=given)))[:4]]
        counts += [body(client.answer("report", signed(plans(given)(round), given=given)))[:4] for round in (2, 3)]
        assert counts[0] == counts[1] == counts[2]
        assert int.from_bytes(counts[0], "little") != given.method.aggregation.limit // 2


def test_no_change_is_reported_without_a_look_at_the_records(tmp_path, monkeypatch):
    """Records that take longer than the clock allows take it from the report, and not from what stands in its place."""
    given = people.method_recipe("webfed").with_({"method.aggregation": {"kind": "mean"}})
    given = given.with_({"evaluation.private": {"share": 0.2, "target": {"epsilon": 100.0, "delta": 1e-5}}})
    own = settings(limit=1e12)
    joined(tmp_path / "a", given, own).close()
    monkeypatch.setattr(OwnRecords, "sides", lambda *_: time.sleep(60))
    with Client.open(tmp_path / "a") as client:
        client.settings = own.model_copy(update={"limits": own.limits.model_copy(update={"seconds": 2.0})})
        reply = client.reply("report", signed(plans(given)(1), given=given))
        assert (reply.reason, client.standing.releases) == ("", 1)


@pytest.mark.parametrize("learning", ["local-only", "ldpfl"])
def test_where_nothing_is_released_failing_is_no_refusal(tmp_path, learning):
    given = people.method_recipe(learning)
    if learning == "ldpfl":
        given = given.with_({"method.learning": "alone"})
    with joined(tmp_path / "a", given) as client:
        of, answers = plans(given), []
        if client._member(NAME).prepares:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Membership, "prepare", lambda *_: 1 // 0)
                answers.append(client.reply("prepare", signed(of(0), "prepare", given=given)))
        for round in (1, 2):
            with failing() if round == 2 else nullcontext():
                answers.append(client.reply("report", signed(of(round), given=given)))
        assert {(answer.reason, body(answer.payload)) for answer in answers} == {("", b"")}
        states = client._agreements.states(NAME)
        first, second = (states.load(round, states.rounds()[round]) for round in (1, 2))
        assert first is not None and second is not None and list(first) == list(second)
        assert all(np.array_equal(first[name], second[name]) for name in first)
        assert list(client._agreements.states(NAME).rounds())[-1] == 2 and client.standing.releases == 0


# --- records that are randomised once


def randomised(tmp_path: Path) -> tuple[Client, list[int]]:
    given = people.method_recipe("ldpfl")
    own = settings(limit=1e6, unproven=["labels"], budget={"adjacency": "record-replace"})
    joined(tmp_path / "a", given, own).close()
    made: list[int] = []

    def counting(round: int):
        made.append(round)
        return fresh(round)

    return Client.open(tmp_path / "a", randomness=counting), made


def test_records_are_randomised_once_and_reused_after_a_restart_and_by_a_second_federation(tmp_path):
    given = people.method_recipe("ldpfl")
    client, made = randomised(tmp_path)
    with client:
        client.answer("prepare", signed(plans(given)(0), "prepare", given=given))
        body(client.answer("report", signed(plans(given)(1), given=given)))
        spent, unprotected = client.standing.spent, client.standing.unprotected
        (path,) = (tmp_path / "a" / "prepared").glob("*.safetensors")
        content = path.read_bytes()
    assert made == [0, 1] and spent > 0 and unprotected == 1
    with Client.open(tmp_path / "a", randomness=lambda round: (made.append(round), fresh(round))[1]) as again:
        again.answer("prepare", signed(plans(given)(0), "prepare", given=given))
        again.join(invitation(given, name="second").encode())
        of = plans(given, "second")
        again.answer("prepare", signed(of(0), "prepare", given=given))
        body(again.answer("report", signed(of(1), given=given)))
        assert made == [0, 1, 1]  # training order only: no record was randomised again
        assert path.read_bytes() == content
        assert (again.standing.spent, again.standing.unprotected) == (spent, unprotected)
        told = [e.event for e in again.ledger.entries() if isinstance(e.event, Released)]
        second = [r for event in told if event.key.federation == "second" for r in event.releases]
        assert second and all(isinstance(release.composition, Derived) for release in second)


def test_rounds_go_on_from_what_was_prepared_though_a_record_is_added(tmp_path):
    given = people.method_recipe("ldpfl")
    client, _ = randomised(tmp_path)
    with client:
        client.answer("prepare", signed(plans(given)(0), "prepare", given=given))
    path = tmp_path / "a" / "client.toml"
    path.write_text(path.read_text().replace('rows = "0-19"', 'rows = "0-20"'))
    with Client.open(tmp_path / "a") as again:
        assert len(again.records(invitation().shape)) == 21
        assert again.reply("report", signed(plans(given)(1), given=given)).reason == ""
        assert len(list((tmp_path / "a" / "prepared").glob("*.safetensors"))) == 1


@pytest.mark.parametrize(
    "changes",
    [{"clients.epsilon": 0.25}, {"method.extractor.orientations": 5}, {"seed": 9}],
    ids=["other epsilon", "other features", "other seed"],
)
def test_other_settings_randomise_anew_and_are_counted(tmp_path, changes):
    given = people.method_recipe("ldpfl")
    client, made = randomised(tmp_path)
    other = given.with_(changes)
    with client:
        client.answer("prepare", signed(plans(given)(0), "prepare", given=given))
        spent = client.standing.spent
        client.join(invitation(other, name="second").encode())
        assert client.reply("prepare", signed(plans(other, "second")(0), "prepare", given=other)).reason == ""
        assert client.standing.spent > spent
        assert made == [0, 0]


@pytest.mark.parametrize("rows", ["0-19", "0-20", "5-7"])
def test_whether_a_preparation_is_charged_does_not_depend_on_the_records(tmp_path, rows):
    """A server that watches the budget would learn whether one has changed."""
    given = people.method_recipe("ldpfl")
    client, _ = randomised(tmp_path)
    with client:
        client.answer("prepare", signed(plans(given)(0), "prepare", given=given))
        spent = client.standing.spent
    path = tmp_path / "a" / "client.toml"
    path.write_text(path.read_text().replace('rows = "0-19"', f'rows = "{rows}"'))
    with Client.open(tmp_path / "a") as again:
        again.join(invitation(given, name="second").encode())
        assert again.reply("prepare", signed(plans(given, "second")(0), "prepare", given=given)).reason == ""
        assert (again.standing.spent, again.standing.unprotected) == (spent, 1)
    for prepared in (tmp_path / "a" / "prepared").glob("*.safetensors"):
        prepared.unlink()  # as an owner does who wants new records to take part: it is made, and charged, anew
    with Client.open(tmp_path / "a") as again:
        again.join(invitation(given, name="third").encode())
        assert again.reply("prepare", signed(plans(given, "third")(0), "prepare", given=given)).reason == ""
        assert again.standing.spent > spent


def prepared_as(folder: Path, name: str, rows: str, federation: str, learning: str = "together") -> set[bytes]:
    """Prepare for a federation under a name of data, disjoint from the other; what lies in the folder then."""
    given = people.method_recipe("ldpfl").with_({"method.learning": learning})
    own = settings(rows, unproven=["labels", "randomised features"], budget={"adjacency": "record-replace"})
    disjoint = () if federation == "first" else ({"A": "B", "B": "A"}[name],)
    named = replace_model(own, name=name, disjoint_from=disjoint)
    if folder.exists():
        (folder / "client.toml").write_text(named.to_toml())
    with Client.open(folder) if folder.exists() else people.client(folder, named) as client:
        client.join(invitation(given, name=federation).encode())
        message = people.KEY.envelope(
            "prepare", plans(given, federation)(0), people.terms(given, federation).digest, range(100),
            plans(given, federation)(0).encode(),
        )  # fmt: skip
        assert client.reply("prepare", message).reason == ""
    return {path.read_bytes() for path in (folder / "prepared").glob("*.safetensors")}


def replace_model(own: Settings, **data: object) -> Settings:
    return own.model_copy(update={"data": own.data.model_copy(update=data)})


def test_each_name_of_data_and_each_federation_that_tells_nothing_prepares_its_own(tmp_path):
    """Rows that nothing was paid for must not leave in what another name, or another federation, pays for."""
    folder = tmp_path / "a"
    assert len(prepared_as(folder, "A", "0-19", "first", learning="alone")) == 1
    assert len(prepared_as(folder, "B", "20-39", "second")) == 2, "not what was made of A's rows"
    third = prepared_as(folder, "A", "0-19", "third")
    assert len(third) == 3, "nor what a federation made that told nothing"
    assert prepared_as(folder, "A", "0-19", "fourth") == third, "once for a name"
    with Client.open(folder) as client:
        unprotected = {name: own.unprotected for name, own in client.ledger.standings().items()}
    assert unprotected == {"A": 2, "B": 2}, "features and labels"


def test_a_round_before_the_preparation_is_refused(tmp_path):
    client, _ = randomised(tmp_path)
    with client:
        given = people.method_recipe("ldpfl")
        reply = client.reply("report", signed(plans(given)(1), given=given))
        assert reply.reason == Reason.OUT_OF_ORDER.value


# --- receipts


def with_receipt(receipt: bytes) -> bytes:
    return replace(invitation(), receipt=receipt.hex()).encode()


def test_a_receipt_is_the_ledgers_head_and_only_this_client_can_make_it(tmp_path):
    with joined(tmp_path / "a") as client:
        receipt = client.reply("report", signed(plans()(1))).receipt
        assert len(receipt) == RECEIPT_BYTES
        assert Seal(client.identity.key).head(NAME, receipt) == client.ledger.head()
        client.receive_receipt(NAME, receipt)
        for forged in (receipt[:-1] + bytes([receipt[-1] ^ 1]), os.urandom(RECEIPT_BYTES), b""):
            with pytest.raises(Refused):
                client.join(with_receipt(forged) if forged else replace(invitation(), receipt="zz").encode())
        with pytest.raises(Refused):  # one for another federation
            client.join(replace(invitation(name="another"), receipt=receipt.hex()).encode())
        assert not client.stopped  # what is forged stops nobody
        body(client.answer("report", signed(plans()(2))))


def older(tmp_path: Path) -> tuple[bytes, Path]:
    """A client whose folder was copied after round 1 and put back after round 2; the receipt of round 2."""
    folder, backup = tmp_path / "a", tmp_path / "backup"
    with joined(folder) as client:
        client.answer("report", signed(plans()(1)))
    shutil.copytree(folder, backup)
    with Client.open(folder) as client:
        receipt = client.reply("report", signed(plans()(2))).receipt
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    return receipt, folder


def test_a_restored_older_ledger_is_noticed_at_the_next_join_and_stops_the_client(tmp_path):
    receipt, folder = older(tmp_path)
    with Client.open(folder) as client:
        with people.refused(Reason.OLDER_LEDGER):
            client.join(with_receipt(receipt))
        reply = client.reply("report", signed(plans()(2)))
        assert reply.reason == Reason.OLDER_LEDGER.value
    with Client.open(folder) as again:  # a restart does not resolve it, nor does another invitation
        assert again.stopped
        with people.refused(Reason.OLDER_LEDGER):
            again.join(invitation(name="another").encode())


def test_an_accepted_older_ledger_counts_every_round_that_it_lacks(tmp_path):
    receipt, folder = older(tmp_path)
    with Client.open(folder) as client:
        with pytest.raises(Refused):
            client.join(with_receipt(receipt))
        assert client.standing.spent == pytest.approx(COST)
        assert client.accept_older_ledger() == pytest.approx(3 * COST)  # rounds 2 and 3 may both have been answered
        client.join(with_receipt(receipt))
        body(client.answer("report", signed(plans()(2))))  # perhaps a second draw of round 2: counted again
        assert client.standing.spent == pytest.approx(4 * COST)
        with pytest.raises(InvalidInput, match="nothing to accept"):
            client.accept_older_ledger()


def test_an_older_ledger_is_not_accepted_beyond_the_budget(tmp_path):
    receipt, folder = older(tmp_path)
    limited(folder, 2.5 * COST)
    with Client.open(folder) as client:
        with pytest.raises(Refused):
            client.join(with_receipt(receipt))
        with pytest.raises(Exception, match="asks for epsilon"):
            client.accept_older_ledger()
        assert client.stopped
        assert client.standing.spent == pytest.approx(COST)


def test_an_acceptance_that_a_crash_cuts_off_is_given_again_and_counts_once(tmp_path, monkeypatch):
    receipt, folder = older(tmp_path)
    limited(folder, 3 * COST)
    with Client.open(folder) as client:
        with pytest.raises(Refused):
            client.join(with_receipt(receipt))
        with monkeypatch.context() as crash:
            crash.setattr(
                "sordino.client.older_ledger.append_line", lambda *_: 1 / 0
            )  # all is counted, and nothing is accepted yet
            with pytest.raises(ZeroDivisionError):
                client.accept_older_ledger()
    with Client.open(folder) as client:
        assert client.stopped
        marker = client._older_ledger.marker.read_bytes()
        assert client.accept_older_ledger() == pytest.approx(3 * COST)
    (folder / "older-ledger.json").write_bytes(marker)  # accepted, and cut off before the last word
    with Client.open(folder) as client:
        assert not client.stopped
        assert client.standing.spent == pytest.approx(3 * COST)


def test_one_acceptance_is_for_all_receipts_that_lie_in_the_folder(tmp_path):
    names = (NAME, "another")
    with joined(tmp_path / "a") as client:
        client.join(invitation(name="another").encode())
        shutil.copy(tmp_path / "a" / "ledger.sqlite", tmp_path / "old.sqlite")
        for name in names:
            client.receive_receipt(name, client.reply("report", signed(plans(name=name)(1))).receipt)
    shutil.copy(tmp_path / "old.sqlite", tmp_path / "a" / "ledger.sqlite")
    with Client.open(tmp_path / "a") as client:
        assert client.accept_older_ledger() == pytest.approx(6 * COST)
    with Client.open(tmp_path / "a") as client:
        assert not client.stopped


def limited(folder: Path, epsilon: float) -> None:
    path = folder / "client.toml"
    path.write_text(path.read_text().replace("limit = 1000000.0", f"limit = {epsilon}"))


def test_an_older_receipt_does_not_replace_a_newer_one(tmp_path):
    """Whoever reaches the socket could hide with it that the ledger alone was restored."""
    folder = tmp_path / "a"
    with joined(folder) as client:
        first = client.reply("report", signed(plans()(1))).receipt
        shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
        client.receive_receipt(NAME, first)
        second = client.reply("report", signed(plans()(2))).receipt
        client.receive_receipt(NAME, second)
        client.receive_receipt(NAME, first)
        assert client._agreements.receipt(NAME) == second
    shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
    with Client.open(folder) as client:
        assert client.stopped
        client.receive_receipt(NAME, first)  # which this ledger has: that takes nothing back
        assert client._agreements.receipt(NAME) == second
        client.accept_older_ledger()
        newest = client.reply("report", signed(plans()(3))).receipt
        client.receive_receipt(NAME, newest)
        assert client._agreements.receipt(NAME) == newest


def test_a_receipt_in_the_folder_and_a_newer_one_of_the_server_are_one_loss(tmp_path):
    folder = tmp_path / "a"
    with joined(folder) as client:
        shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
        client.receive_receipt(NAME, client.reply("report", signed(plans()(1))).receipt)
        newest = client.reply("report", signed(plans()(2))).receipt
    limited(folder, 3 * COST)  # room for the schedule once
    shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
    with Client.open(folder) as client:
        with people.refused(Reason.OLDER_LEDGER):
            client.offer(with_receipt(newest))
        assert client.accept_older_ledger() == pytest.approx(3 * COST)
        client.join(with_receipt(newest))
    with Client.open(folder) as client:
        assert not client.stopped


def test_a_stopped_client_gathers_what_servers_show_and_counts_it_once(tmp_path):
    folder, names = tmp_path / "a", (NAME, "another")
    with joined(folder) as client:
        client.join(invitation(name="another").encode())
        shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
        receipts = {name: client.reply("report", signed(plans(name=name)(1))).receipt for name in names}
    shown = [replace(invitation(name=name), receipt=receipts[name].hex()).encode() for name in names]
    limited(folder, 6 * COST)
    shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
    for message in shown:
        with Client.open(folder) as client, people.refused(Reason.OLDER_LEDGER):
            client.offer(message)
    with Client.open(folder) as client:
        assert client.accept_older_ledger() == pytest.approx(6 * COST)
        for message in shown:
            client.join(message)


def test_an_acceptance_is_worth_no_more_than_the_ledger_that_counted_it(tmp_path):
    folder = tmp_path / "a"
    with joined(folder) as client:
        shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
        client.receive_receipt(NAME, client.reply("report", signed(plans()(1))).receipt)
    for spent in (3 * COST, 6 * COST, 9 * COST):  # a schedule for each time that the ledger was put back
        shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
        with Client.open(folder) as client:
            assert client.stopped
            assert client.reply("report", signed(plans()(1))).reason == Reason.OLDER_LEDGER.value
            assert client.accept_older_ledger() == pytest.approx(spent)
        with Client.open(folder) as client:
            assert not client.stopped
            body(client.answer("report", signed(plans()(1))))


def test_the_newest_copy_put_back_after_an_acceptance_lacks_what_left_since_then(tmp_path):
    folder = tmp_path / "a"
    with joined(folder) as client:
        shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
        client.receive_receipt(NAME, client.reply("report", signed(plans()(1))).receipt)
        shutil.copy(folder / "ledger.sqlite", tmp_path / "newest.sqlite")
    shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
    with Client.open(folder) as client:
        client.accept_older_ledger()
        body(client.answer("report", signed(plans()(1))))
    shutil.copy(tmp_path / "newest.sqlite", folder / "ledger.sqlite")
    with Client.open(folder) as client:
        assert client.stopped
        # round 1 is recorded, rounds 2 and 3 may be missing, and any round may have been answered since the acceptance
        assert client.accept_older_ledger() == pytest.approx((1 + 2 + 3) * COST)


def test_an_older_ledger_alone_is_noticed_by_the_receipt_beside_it(tmp_path):
    with joined(tmp_path / "a") as client:
        shutil.copy(tmp_path / "a" / "ledger.sqlite", tmp_path / "old.sqlite")
        client.receive_receipt(NAME, client.reply("report", signed(plans()(1))).receipt)
    newest = tmp_path / "newest.sqlite"
    (tmp_path / "a" / "ledger.sqlite").rename(newest)
    shutil.copy(tmp_path / "old.sqlite", tmp_path / "a" / "ledger.sqlite")
    with Client.open(tmp_path / "a") as client:
        assert client.stopped
    newest.replace(tmp_path / "a" / "ledger.sqlite")
    with Client.open(tmp_path / "a") as client:  # the newest copy resolves it
        assert not client.stopped


def test_a_damaged_identity_is_said_to_be_damaged(tmp_path):
    people.client(tmp_path / "a").close()
    (tmp_path / "a" / "identity.json").write_text(json.dumps({"name": "a"}))
    with pytest.raises(InvalidInput, match="backup"):
        Client.open(tmp_path / "a")


def test_a_log_begins_anew_before_it_fills_a_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("sordino.client.client.LOG_BYTES", 300)
    with people.client(tmp_path / "a") as client:
        for k in range(20):
            client.log(f"line {k} {'x' * 100}")
        sizes = [(tmp_path / "a" / name).stat().st_size for name in ("log.txt", "log.old.txt")]
    assert max(sizes) < 600


def test_a_schedule_that_nobody_could_read_is_refused(tmp_path):
    with people.client(tmp_path / "a") as client, pytest.raises(Refused, match="30,000 rounds"):
        client.offer(invitation(recipe({"rounds.count": 30_000})).encode())


@pytest.mark.parametrize("constants", [{"std": (0.0,)}, {"mean": (0.0, 0.0)}, {"mean": (0.0,) * 3, "std": (1.0,) * 3}])
def test_constants_that_do_not_fit_the_records_are_refused(tmp_path, constants):
    with people.client(tmp_path / "a") as client, pytest.raises(Refused, match="constants"):
        client.offer(replace(people.terms(), **constants).invitation(0, people.KEY).encode())
