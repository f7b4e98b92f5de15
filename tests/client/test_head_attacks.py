"""What a hostile server may try on a linear head: plans that count records or hold no numbers, and files it names."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from sordino.client.client import Client
from sordino.client.refusal import Reason
from sordino.client.settings import Settings
from sordino.learning.tasks import MOST_CLASSES
from sordino.methods.private_head import CENTRE, GRADIENT, LEFT, MOMENTS
from sordino.methods.silo_dp import WHAT
from sordino.recipe import Recipe
from sordino.wire.messages import Answer, Kind, Plan
from tests.client import people
from tests.client.people import body, invitation, joined, plans, settings, signed
from tests.methods.own_networks import Plain

BUDGET = {"budget": {"delta": 1e-5, "adjacency": "record-add-remove"}}
RECORDS = 20  #: of the client


def own(rows: str = "0-19", **tables: Any) -> Any:
    return settings(rows, 10.0, **BUDGET, **tables)


@pytest.fixture
def given() -> Recipe:
    return people.method_recipe("private-head")


@pytest.fixture
def member(tmp_path: Path, given: Recipe) -> Iterator[Client]:
    with joined(tmp_path / "a", given, own()) as found:
        body(found.answer("report", signed(plans(given)(1), given=given)))
        yield found


def with_arrays(given: Recipe, **arrays: Any) -> Plan:
    plan = plans(given)(2)
    return replace(plan, arrays={**plan.arrays, **arrays})


@pytest.mark.parametrize("count", [RECORDS, RECORDS + 1])
def test_a_matrix_for_every_record_does_not_tell_how_many_there_are(member: Client, given: Recipe, count: int) -> None:
    """Products of as many matrices as records would come out, and all others would fail: both are refused alike."""
    left = plans(given)(2).arrays[LEFT]
    plan = with_arrays(given, **{LEFT: np.broadcast_to(left, (count, *left.shape)).astype(np.float32)})
    spent = member.standing.spent
    reply = member.reply("report", signed(plan, given=given))
    assert reply.reason == Reason.NOT_IN_RECIPE.value
    assert Answer.decode(reply.payload).kind is Kind.DECLINED
    assert member.standing.spent == spent


def test_an_invitation_to_more_classes_than_sums_are_exact_for_is_refused(tmp_path: Path, given: Recipe) -> None:
    names = tuple(str(k) for k in range(MOST_CLASSES + 1))
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 1, 8, 8), np.uint8), y=np.arange(4))
    data = {"source": str(tmp_path / "own.npz"), "classes": names}
    there = Settings.of({"data": data, "budget": {"limit": 10.0, **BUDGET["budget"]}, "limits": {"parameters": 10**7}})
    with people.client(tmp_path / "a", there) as found, people.refused(Reason.NOT_IN_RECIPE) as caught:
        found.join(replace(people.terms(given), classes=names).invitation(0, people.KEY).encode())
    assert "8,192" in str(caught.value)


@pytest.mark.parametrize("name", [LEFT, CENTRE, "parameters"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_plan_without_numbers_is_refused(member: Client, given: Recipe, name: str, value: float) -> None:
    array = plans(given)(2).arrays[name].copy()
    array.reshape(-1)[0] = value
    assert member.reply("report", signed(with_arrays(given, **{name: array}), given=given)).reason


@pytest.mark.parametrize("name", [LEFT, CENTRE, "parameters"])
def test_the_largest_numbers_get_a_report_of_the_usual_length(member: Client, given: Recipe, name: str) -> None:
    array = plans(given)(2).arrays[name]
    large = np.where(np.arange(array.size).reshape(array.shape) % 2, 3e38, -3e38).astype(np.float32)
    sent = body(member.answer("report", signed(with_arrays(given, **{name: large}), given=given)))
    assert len(sent) == len(body(member.answer("report", signed(plans(given)(3), given=given))))


def test_reports_are_as_long_whoever_holds_how_many_records(tmp_path: Path, given: Recipe) -> None:
    lengths = set()
    for number, rows in enumerate(("0", "0-19", "0-999")):
        with joined(tmp_path / str(number), given, own(rows)) as found:
            lengths.add(tuple(len(found.answer("report", signed(plans(given)(r), given=given))) for r in (1, 2)))
    assert len(lengths) == 1


def test_a_round_of_moments_cannot_be_had_twice(member: Client, given: Recipe) -> None:
    again = replace(plans(given)(1), settings={"again": 1})
    assert member.reply("report", signed(again, given=given)).reason == Reason.NOT_IN_RECIPE.value
    body(member.answer("report", signed(plans(given)(2), given=given)))
    other = with_arrays(given, parameters=plans(given)(2).arrays["parameters"] + 1)
    assert member.reply("report", signed(other, given=given)).reason == Reason.OUT_OF_ORDER.value


def test_only_the_owner_says_that_a_network_was_trained_elsewhere(tmp_path: Path) -> None:
    """A server that names a file of the owner's, perhaps trained on these very records, is believed nothing."""
    weights = tmp_path / "net.safetensors"
    save_file(Plain((1, 8, 8), 10).state_dict(), weights)
    code = "tests.methods.own_networks:Plain"
    extractor = {"kind": "network", "model": code, "weights": str(weights), "elsewhere": True}
    given = people.method_recipe("private-head").with_({"method.extractor": extractor})
    careful = people.client(tmp_path / "careful", own(code=[code]))
    with careful, people.refused(Reason.CONSENT):
        careful.join(invitation(given).encode())
    agreed = own(code=[code], weights=[str(weights)], unproven=[MOMENTS, GRADIENT])
    knowing = people.client(tmp_path / "knowing", agreed)
    with knowing:
        knowing.join(invitation(given).encode())
        body(knowing.answer("report", signed(plans(given)(1), given=given)))


def test_only_the_owner_says_that_code_treats_each_record_by_itself(tmp_path: Path) -> None:
    """A server's word that code keeps nothing from record to record is believed nothing: the proof rests on it."""
    code = "tests.methods.own_networks:Plain"
    given = people.method_recipe("silo-dp").with_({"model": {"name": code, "per_record": True}})
    careful = people.client(tmp_path / "careful", own(code=[code]))
    with careful, people.refused(Reason.CONSENT):
        careful.join(invitation(given).encode())
    knowing = people.client(tmp_path / "knowing", own(code=[code], per_record=True, unproven=[WHAT]))
    with knowing:
        knowing.join(invitation(given).encode())
