"""A client answers its coordinator, and nobody who speaks in its name."""

import json
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sordino.cli import app
from sordino.client import frames
from sordino.client.core import Client
from sordino.client.frames import Request, Response, What
from sordino.client.invitation import Invitation
from sordino.client.refusal import Reason, Refused
from sordino.client.service import Service
from sordino.errors import InvalidInput
from sordino.messages import Plan
from sordino.signing import Author, Envelope, SigningKey, bits, key_file
from tests.client import people
from tests.client.forgeries import STRANGER, forged
from tests.client.people import COST, KEY, NAME, body, invitation, joined, plans, recipe, settings, signed

NOT_SIGNED = Reason.NOT_SIGNED.value


# --- forged plans -----------------------------------------------------------------------------------------------------


def test_forged_plans_are_refused_cost_nothing_and_the_true_round_is_answered(tmp_path):
    """Six rounds of forgeries, as many as the real attack had, and after each the real one."""
    given = recipe({"rounds.count": 6})
    with joined(tmp_path / "a", given) as member:
        member.join(invitation(given, name="another").encode())
        for round in range(1, 7):
            spent, head = member.standing.spent, member.ledger.head()
            genuine, elsewhere = plans(given)(round), plans(given, "another")(round)

            tries = forged(genuine, elsewhere)
            del tries["of another federation"]  # the owner is in that one as well: there, it is genuine
            for name, message in tries.items():
                reply = member.reply("report", message)
                assert (reply.answer, reply.reason) == (b"", NOT_SIGNED), name
            assert (member.standing.spent, member.ledger.head()) == (spent, head)
            assert len(body(member.answer("report", signed(genuine)))) == 82
        assert member.standing.spent == pytest.approx(6 * COST)
        assert member.federations() == {"another": 0, NAME: 6}
    log = (tmp_path / "a/log.txt").read_text()
    assert log.count("refused the step 'report'") == 6 * 12


@pytest.fixture
def socket() -> Iterator[tuple[Client, Path]]:
    place = Path(tempfile.mkdtemp(prefix="sdo-"))
    with joined(place / "a") as client:
        service = Service(client, place / "s")
        thread = threading.Thread(target=service.serve)
        thread.start()
        yield client, place / "s"
        service.stop()
        thread.join()
    shutil.rmtree(place)


def asked(path: Path, request: Request) -> Response:
    with frames.socket.socket(frames.socket.AF_UNIX) as connection:
        connection.connect(str(path))
        frames.send(connection, request.encode())
        return Response.decode(frames.receive(connection))


def test_whoever_reaches_the_socket_cannot_speak_for_the_coordinator(socket):
    client, path = socket
    plan, elsewhere = plans()(1), plans(name="another")(1)
    for name, message in forged(plan, elsewhere).items():
        expected = Reason.NOT_AGREED.value if name == "of another federation" else NOT_SIGNED
        response = asked(path, Request(What.STEP, "report", message))
        assert response == Response(False, b"", expected, b""), name
    assert client.standing.spent == 0
    genuine = asked(path, Request(What.STEP, "report", signed(plan)))
    assert genuine.fine and len(body(genuine.payload)) == 82


@given(st.sets(st.integers(0, 200)), st.integers(0, 300))
def test_an_envelope_is_for_the_clients_that_it_names(clients, client):
    envelope = Envelope(NAME, 1, bytes(16), bits(clients), b"")
    assert envelope.is_for(client) == (client in clients)
    assert Envelope.decode(envelope.encode()) == envelope


@given(st.integers(0, len(signed(plans()(1))) - 1), st.integers(1, 255))
def test_no_byte_of_a_signed_message_can_be_changed(at, change):
    message = bytearray(signed(plans()(1)))
    message[at] ^= change
    try:
        found = Envelope.decode(bytes(message))
    except InvalidInput:
        return
    assert not found.is_signed("report", KEY.author.key)


# --- steps of a secure sum --------------------------------------------------------------------------------------------

SUMMED = {"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}}


class Passing(people.DirectFleet):
    """Before each step of a sum, somebody hands client 0 what was meant for others, or signed for something else."""

    def __init__(self, clients: Any) -> None:
        super().__init__(clients)
        self.reasons_of: dict[str, set[str]] = {}

    def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
        own = Envelope.decode(messages[0])
        tries = {
            "stranger": replace(own, message=own.message).signed(step, STRANGER.private).encode(),
            "other plan": replace(own, plan=bytes(16)).signed(step, STRANGER.private).encode(),
            "plan changed": replace(own, plan=bytes(16)).encode(),
            "round changed": replace(own, round=2).encode(),
            "other step": replace(own).signed("report", KEY.private).encode(),
        }
        if messages[1] != messages[0]:
            tries["for client 1"] = messages[1]
        for name, message in tries.items():
            reply = self.clients[0].reply(step, message)
            assert reply.answer == b""
            self.reasons_of.setdefault(name, set()).add(reply.reason)
        yield from super().exchange(step, messages, deadline)


def test_no_step_of_a_sum_can_be_forged_or_handed_to_another_and_the_sum_goes_on(tmp_path):
    federation = people.wire(recipe(SUMMED))
    fleet = Passing(people.members(tmp_path, federation))
    _, held = people.coordinator(federation, fleet).round(federation.method.init())
    assert held.attendance.reported == [0, 1, 2, 3]
    assert set(fleet.reasons_of) == {
        "stranger", "other plan", "plan changed", "round changed", "other step", "for client 1",
    }  # fmt: skip
    assert all(reasons == {NOT_SIGNED} for reasons in fleet.reasons_of.values())
    assert fleet.clients[0].standing.spent == pytest.approx(COST)


def test_a_step_that_its_coordinator_signed_for_another_plan_is_refused(tmp_path):
    """The session in it is this round's: what counts is that signature and sum are of one plan."""
    federation = people.wire(recipe(SUMMED))
    seen: list[str] = []

    class Mixing(people.DirectFleet):
        def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
            if step != "keys":
                own = Envelope.decode(messages[0])
                others = [replace(own, plan=bytes(16)), replace(own, round=2)]
                forgeries = [other.signed(step, KEY.private).encode() for other in others]
                seen.extend(self.clients[0].reply(step, message).reason for message in forgeries)
            yield from super().exchange(step, messages, deadline)

    fleet = Mixing(people.members(tmp_path, federation))
    _, held = people.coordinator(federation, fleet).round(federation.method.init())
    assert seen == [NOT_SIGNED] * 8
    assert held.attendance.reported == [0, 1, 2, 3]


# --- keys -------------------------------------------------------------------------------------------------------------


def with_author(author: Author, name: str = NAME) -> bytes:
    own = invitation(name=name)
    rotations = tuple(rotation.hex() for rotation in author.rotations)
    return replace(own, coordinator=author.first.hex(), rotations=rotations).encode()


def test_a_rotation_by_the_old_key_is_followed_and_outlives_a_restart(tmp_path):
    new = KEY.rotated()
    newest = new.rotated()
    with joined(tmp_path / "a") as member:
        assert member.reply("report", signed(plans()(1), key=new)).reason == NOT_SIGNED
        member.join(with_author(new.author))
        assert member.reply("report", signed(plans()(1))).reason == NOT_SIGNED, "the old key signs no more"
        body(member.answer("report", signed(plans()(1), key=new)))
    with Client.open(tmp_path / "a") as member:
        member.join(with_author(KEY.author))  # an invitation from before the rotation takes nothing back
        assert member.reply("report", signed(plans()(2))).reason == NOT_SIGNED
        member.join(with_author(newest.author))
        body(member.answer("report", signed(plans()(2), key=newest)))
    assert len(json.loads((tmp_path / "a/federations" / NAME / "rotations.json").read_text())) == 2


def test_a_client_may_join_after_a_rotation(tmp_path):
    new = KEY.rotated()
    with people.client(tmp_path / "a") as member:
        member.join(with_author(new.author))
        assert member.reply("report", signed(plans()(1))).reason == NOT_SIGNED
        body(member.answer("report", signed(plans()(1), key=new)))


def test_a_rotation_by_another_key_is_refused(tmp_path):
    wrong = STRANGER.rotated().author.rotations
    with pytest.raises(InvalidInput, match="did not sign the rotation"):
        Author(KEY.author.first, wrong)
    with joined(tmp_path / "a") as member:
        with pytest.raises(Refused) as refusal:
            member.join(replace(invitation(), rotations=(wrong[0].hex(),)).encode())
        assert refusal.value.reason is Reason.UNREADABLE
        body(member.answer("report", signed(plans()(1))))


def test_an_old_key_that_fell_into_other_hands_hands_over_to_nobody(tmp_path):
    """A second rotation by a key that has handed over before, as whoever stole it would make one."""
    with joined(tmp_path / "a") as member:
        new, stolen = KEY.rotated(), KEY.rotated()
        member.join(with_author(new.author))
        with pytest.raises(Refused) as refusal:
            member.join(with_author(stolen.author))
        assert refusal.value.reason is Reason.NOT_SIGNED
        assert member.reply("report", signed(plans()(1), key=stolen)).reason == NOT_SIGNED
        body(member.answer("report", signed(plans()(1), key=new)))


def test_an_invitation_with_another_key_is_refused_where_the_owner_agreed_or_wrote_one_down(tmp_path):
    with joined(tmp_path / "a") as member:
        with pytest.raises(Refused) as refusal:
            member.join(with_author(STRANGER.author))
        assert refusal.value.reason is Reason.OTHER_TERMS
    with people.client(tmp_path / "b", settings(federations=[NAME])) as careful:
        with pytest.raises(Refused) as refusal:
            careful.join(with_author(STRANGER.author))
        assert refusal.value.reason is Reason.NOT_SIGNED
        careful.join(invitation().encode())


def test_only_a_federation_with_its_key_is_joined_without_the_owner(socket):
    """A name alone is not enough: whoever came first under it would be taken for the coordinator."""
    client, path = socket
    consents = client.settings.consents.model_copy(update={"federations": ("*", "trial")})
    client.settings = client.settings.model_copy(update={"consents": consents})
    message = with_author(STRANGER.author, "trial")
    assert asked(path, Request(What.JOIN, "", message)).reason == Reason.NOT_AGREED.value
    known = {"trial": KEY.author.first.hex()}
    client.settings = client.settings.model_copy(update={"coordinators": known})
    assert asked(path, Request(What.JOIN, "", message)).reason == NOT_SIGNED
    assert asked(path, Request(What.JOIN, "", with_author(KEY.author, "trial"))).fine
    assert sorted(client.federations()) == [NAME, "trial"]


# --- from before plans were signed ------------------------------------------------------------------------------------


def old(message: bytes) -> bytes:
    """An invitation as version 1 had it."""
    fields = json.loads(message[4:])
    del fields["coordinator"], fields["rotations"]
    return b"SI\x01\x00" + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def test_an_old_invitation_says_what_to_do(tmp_path):
    with people.client(tmp_path / "a") as member, pytest.raises(Refused, match="ask the coordinator for a new one"):
        member.offer(old(invitation().encode()))


def test_who_agreed_before_plans_were_signed_hears_to_join_again_and_does(tmp_path):
    joined(tmp_path / "a").close()
    place = tmp_path / "a/federations" / NAME
    (place / "invitation.json").write_bytes(old(invitation().encode())[4:])
    (place / "rotations.json").unlink()
    with Client.open(tmp_path / "a") as member:
        assert member.reply("report", signed(plans()(1))).reason == NOT_SIGNED
        assert "join again: sordino client join" in (tmp_path / "a/log.txt").read_text()
        assert not member.knows(NAME), "a new invitation through the socket waits for the owner"
        changed = replace(invitation(recipe({"clients.epsilon": 2.0})), coordinator=KEY.author.first.hex())
        with pytest.raises(Refused, match="other terms"):
            member.join(changed.encode())
        offer = member.join(invitation().encode())
        assert not offer.agreed and member.knows(NAME)
        body(member.answer("report", signed(plans()(1))))


# --- where the key lies -----------------------------------------------------------------------------------------------


def test_a_key_is_made_once_for_its_owner_alone(tmp_path):
    path = key_file(tmp_path / "runs/demo")
    first = SigningKey.at(path)
    assert path == tmp_path / "runs/demo.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.at(path).author == first.author
    path.write_text(path.read_text().replace(first.author.first.hex(), STRANGER.author.first.hex()))
    with pytest.raises(InvalidInput, match="damaged"):
        SigningKey.at(path)


def test_the_key_is_printed_and_rotated_from_the_command_line(tmp_path):
    def keys(*more: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["keys", str(tmp_path / "run"), "--json", *more])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    first = keys()
    assert first["key"] == first["signs"] == SigningKey.at(tmp_path / "run.key").author.first.hex()
    second = keys("--rotate")
    assert (second["key"], second["rotations"]) == (first["key"], 1) and second["signs"] != first["key"]
    assert keys() == second == {**keys(), "file": str(tmp_path / "run.key")}
    assert stat.S_IMODE((tmp_path / "run.key").stat().st_mode) == 0o600


def test_the_owner_sees_the_key_before_agreeing(tmp_path):
    with people.client(tmp_path / "a") as member:
        text = member.offer(invitation().encode()).to_text()
    assert KEY.author.first.hex() in text.replace(" ", "")


def test_a_signature_for_a_step_is_none_for_a_rotation():
    """What is signed begins with what it is about."""
    new = KEY.rotated()
    envelope = Envelope.decode(signed(Plan(NAME, 1)))
    with pytest.raises(InvalidInput):
        Author(KEY.author.first, (new.author.rotations[0][:36] + envelope.signature,))
    assert not replace(envelope, signature=new.author.rotations[0][36:]).is_signed("report", KEY.author.key)
    assert Invitation.decode(with_author(new.author)).author.key == new.author.key
