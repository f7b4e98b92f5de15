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
from sordino.client.client import Client
from sordino.client.invitation import Invitation
from sordino.client.refusal import Reason, Refused
from sordino.client.socket_service import Service
from sordino.errors import InvalidInput
from sordino.wire import requests
from sordino.wire.messages import Plan
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Author, Envelope, SigningKey, bits, key_file
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

            tries = forged(genuine, elsewhere, given)
            del tries["of another federation"]  # the owner is in that one as well: there, it is genuine
            for name, message in tries.items():
                reply = member.reply("report", message)
                assert (reply.payload, reply.reason) == (b"", NOT_SIGNED), name
            assert (member.standing.spent, member.ledger.head()) == (spent, head)
            assert len(body(member.answer("report", signed(genuine, given=given)))) == 82
        assert member.standing.spent == pytest.approx(6 * COST)
        assert member.federations() == {"another": 0, NAME: 6}
    log = (tmp_path / "a/log.txt").read_text()
    assert log.count("refused the step 'report'") == 6 * 13


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
    with requests.socket.socket(requests.socket.AF_UNIX) as connection:
        connection.connect(str(path))
        requests.send(connection, request.encode())
        return Response.decode(requests.receive(connection))


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
    envelope = Envelope(NAME, 1, bytes(16), bytes(32), bits(clients), b"")
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
            assert reply.payload == b""
            self.reasons_of.setdefault(name, set()).add(reply.reason)
        yield from super().exchange(step, messages, deadline)


@pytest.mark.usefixtures("sum_graph")
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


@pytest.mark.usefixtures("sum_graph")
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


def by(key: SigningKey, name: str = NAME) -> bytes:
    """The invitation that the holder of a key can make."""
    terms = replace(people.terms(name=name), coordinator=key.author.first.hex())
    return terms.invitation(0, key).encode()


def test_a_rotation_by_the_old_key_is_followed_and_outlives_a_restart(tmp_path):
    new = KEY.rotated()
    newest = new.rotated()
    with joined(tmp_path / "a") as member:
        assert member.reply("report", signed(plans()(1), key=new)).reason == NOT_SIGNED
        member.join(by(new))
        assert member.reply("report", signed(plans()(1))).reason == NOT_SIGNED, "the old key signs no more"
        body(member.answer("report", signed(plans()(1), key=new)))
    with Client.open(tmp_path / "a") as member:
        member.join(by(KEY))  # an invitation from before the rotation takes nothing back
        assert member.reply("report", signed(plans()(2))).reason == NOT_SIGNED
        member.join(by(newest))
        body(member.answer("report", signed(plans()(2), key=newest)))
    assert len(json.loads((tmp_path / "a/federations" / NAME / "rotations.json").read_text())) == 2


def test_a_client_may_join_after_a_rotation(tmp_path):
    new = KEY.rotated()
    with people.client(tmp_path / "a") as member:
        member.join(by(new))
        assert member.reply("report", signed(plans()(1))).reason == NOT_SIGNED
        body(member.answer("report", signed(plans()(1), key=new)))


def test_a_rotation_by_another_key_is_refused(tmp_path):
    wrong = STRANGER.rotated().author.rotations
    with pytest.raises(InvalidInput, match="rotation"):
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
        member.join(by(new))
        with pytest.raises(Refused) as refusal:
            member.join(by(stolen))
        assert refusal.value.reason is Reason.NOT_SIGNED
        assert member.reply("report", signed(plans()(1), key=stolen)).reason == NOT_SIGNED
        body(member.answer("report", signed(plans()(1), key=new)))


def test_an_invitation_with_another_key_is_refused_where_the_owner_agreed_or_wrote_one_down(tmp_path):
    with joined(tmp_path / "a") as member:
        with pytest.raises(Refused) as refusal:
            member.join(by(STRANGER))
        assert refusal.value.reason is Reason.OTHER_TERMS
    with people.client(tmp_path / "b", settings(federations=[NAME])) as careful:
        with pytest.raises(Refused) as refusal:
            careful.join(by(STRANGER))
        assert refusal.value.reason is Reason.NOT_SIGNED
        careful.join(invitation().encode())


def test_only_a_federation_with_its_key_is_joined_without_the_owner(socket):
    """A name alone is not enough: whoever came first under it would be taken for the coordinator."""
    client, path = socket
    consents = client.settings.consents.model_copy(update={"federations": ("*", "trial")})
    client.settings = client.settings.model_copy(update={"consents": consents})
    message = by(STRANGER, "trial")
    assert asked(path, Request(What.JOIN, "", message)).reason == Reason.NOT_AGREED.value
    known = {"trial": KEY.author.first.hex()}
    client.settings = client.settings.model_copy(update={"coordinators": known})
    assert asked(path, Request(What.JOIN, "", message)).reason == NOT_SIGNED
    assert asked(path, Request(What.JOIN, "", by(KEY, "trial"))).fine
    assert sorted(client.federations()) == [NAME, "trial"]


# --- the terms --------------------------------------------------------------------------------------------------------

GREEDY = {"clients.epsilon": 22.0, "rounds.count": 1000}  #: what somebody who only carries messages would like


@pytest.fixture
def service() -> Iterator[Any]:
    """Serves a client with these settings at a socket that everybody can reach."""
    place, ends = Path(tempfile.mkdtemp(prefix="sdo-")), []

    def serve(own: Any) -> tuple[Client, Path]:
        client = people.client(place / "a", own)
        found = Service(client, place / "s")
        thread = threading.Thread(target=found.serve)
        thread.start()
        ends.extend([found.stop, thread.join, client.close])
        return client, place / "s"

    yield serve
    for end in ends:
        end()
    shutil.rmtree(place)


def forgeries() -> dict[str, Invitation]:
    """Invitations with the coordinator's real key that it did not sign."""
    genuine = invitation()
    return {
        "another recipe": replace(genuine, recipe=recipe(GREEDY).to_toml()),
        "another recipe, signed by a stranger": replace(
            people.terms(recipe(GREEDY)).invitation(0, STRANGER), coordinator=genuine.coordinator
        ),
        "another member's number": replace(genuine, client=1),
        "another member's number, in the places as well": replace(genuine, client=1, places=(1, 1)),
        "more places": replace(genuine, places=(0, 2)),
        "another name": replace(invitation(name="another"), federation=NAME),
        "other constants": replace(genuine, mean=(1.0,)),
        "other classes": replace(genuine, classes=tuple(reversed(genuine.classes))),
        "no signature": replace(genuine, signature=""),
        "no places": replace(genuine, places=()),
        "places that are none": replace(genuine, places=(0, 2**40)),
        "a signature that is none": replace(genuine, signature="nonsense"),
        "the signature of a plan": replace(genuine, signature=Envelope.decode(signed(plans()(1))).signature.hex()),
    }


def test_a_forged_invitation_is_not_joined_though_the_owner_named_federation_and_key(service):
    """What the attack did: the coordinator's key, which is public, with a recipe of somebody else's."""
    client, path = service(settings(federations=[NAME], limit=1e5))
    for name, forged_one in forgeries().items():
        assert asked(path, Request(What.JOIN, "", forged_one.encode())).reason == NOT_SIGNED, name
    assert client.federations() == {} and not (client.folder / "invitations").exists()
    assert asked(path, Request(What.JOIN, "", invitation().encode())).fine
    assert asked(path, Request(What.STEP, "report", signed(plans()(1)))).fine
    assert client.standing.spent == pytest.approx(COST)
    assert "refused an invitation" in (client.folder / "log.txt").read_text()


def test_a_forged_invitation_does_not_wait_for_the_owner(service):
    client, path = service(settings())
    for name, forged_one in forgeries().items():
        assert asked(path, Request(What.JOIN, "", forged_one.encode())).reason == NOT_SIGNED, name
    known = {NAME: KEY.author.first.hex()}
    client.settings = client.settings.model_copy(update={"coordinators": known})
    assert asked(path, Request(What.JOIN, "", by(STRANGER))).reason == NOT_SIGNED
    assert not (client.folder / "invitations").exists()


def test_a_waiting_invitation_is_replaced_by_nothing_but_itself_with_newer_keys(service):
    """Whoever signs with a key of its own is kept beside, and the owner reads of both."""
    client, path = service(settings())
    place = client.folder / "invitations"
    new = KEY.rotated()
    first, others, rotated, stranger = invitation().encode(), invitation(recipe(GREEDY)).encode(), by(new), by(STRANGER)
    for message in (first, stranger, others, first, rotated, first, stranger, invitation(number=1).encode()):
        assert asked(path, Request(What.JOIN, "", message)).reason == Reason.NOT_AGREED.value
    found = {each.name: each.read_bytes() for each in place.iterdir()}
    assert found == {
        f"{NAME}.invitation": rotated, f"{NAME}.2.invitation": stranger, f"{NAME}.3.invitation": others,
        f"{NAME}.4.invitation": invitation(number=1).encode(),
    }  # fmt: skip
    log = (client.folder / "log.txt").read_text()
    assert f"{NAME}.2.invitation" in log and "differs from" in log
    client.join(found[f"{NAME}.invitation"])
    body(client.answer("report", signed(plans()(1), key=new)))


def test_a_plan_of_a_rehearsal_under_the_same_name_and_key_is_not_answered(service):
    """A plan that the coordinator did sign, for a recipe that this client never agreed to."""
    client, path = service(settings(federations=[NAME]))
    assert asked(path, Request(What.JOIN, "", invitation().encode())).fine
    rehearsal = recipe({"clients.epsilon": 0.5, "seed": 7})
    for round in (1, 3):
        replayed = signed(plans(rehearsal)(round), given=rehearsal)
        response = asked(path, Request(What.STEP, "report", replayed))
        assert response == Response(False, b"", Reason.OTHER_TERMS.value, b"")
    assert client.standing.spent == 0
    for round in (1, 2, 3):
        assert asked(path, Request(What.STEP, "report", signed(plans()(round)))).fine
    assert client.standing.spent == pytest.approx(3 * COST)


def test_a_plan_on_other_terms_is_not_answered_though_nothing_in_it_differs(tmp_path):
    """Plans do not say how much noise is added: of two epsilons they can be the same bytes."""
    with joined(tmp_path / "a") as member:
        plan = plans()(1)
        reply = member.reply("report", signed(plan, given=recipe({"clients.epsilon": 0.5})))
        assert (reply.payload, reply.reason) == (b"", Reason.OTHER_TERMS.value)
        assert member.standing.spent == 0
        body(member.answer("report", signed(plan)))


def test_an_invitation_that_a_gateway_hands_on_is_signed_for_all_its_places(tmp_path):
    whole = people.terms().invitation(0, KEY, range(2))
    with people.client(tmp_path / "a") as member:
        member.join(replace(whole, client=1).encode())
        with pytest.raises(Refused) as refusal:
            member.join(replace(whole, client=2).encode())
        assert refusal.value.reason is Reason.NOT_SIGNED


def test_the_digest_of_the_terms_changes_with_each_of_them_and_with_nothing_else():
    terms = people.terms()
    changes: dict[str, Any] = {
        "federation": "another", "recipe": terms.recipe + "#", "shape": (64,), "classes": terms.classes[::-1],
        "mean": (0.25,), "std": (0.25,), "coordinator": STRANGER.author.first.hex(),
    }  # fmt: skip
    assert set(changes) == set(vars(terms))
    digests = {replace(terms, **{name: value}).digest for name, value in changes.items()}
    assert len(digests | {terms.digest}) == 8
    for key, number in ((KEY, 2), (KEY.rotated(), 0)):
        own = replace(terms.invitation(number, key), receipt="ab12")
        assert own.common == terms and own.common.digest == terms.digest


# --- from before plans were signed ------------------------------------------------------------------------------------


def old(message: bytes) -> bytes:
    """An invitation as version 1 had it."""
    fields = json.loads(message[4:])
    for name in ("coordinator", "rotations", "places", "signature"):
        del fields[name]
    return b"SI\x01\x00" + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def test_an_old_invitation_says_what_to_do(tmp_path):
    with people.client(tmp_path / "a") as member, pytest.raises(Refused, match="ask for"):
        member.offer(old(invitation().encode()))


def test_an_invitation_of_the_version_that_nobody_signed_says_what_to_do(tmp_path):
    fields = json.loads(invitation().encode()[4:])
    del fields["places"], fields["signature"]
    unsigned = b"SI\x02\x00" + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    with people.client(tmp_path / "a") as member, pytest.raises(Refused, match="ask for"):
        member.offer(unsigned)


def test_who_agreed_before_invitations_were_signed_stays_in_the_federation(tmp_path):
    joined(tmp_path / "a").close()
    path = tmp_path / "a/federations" / NAME / "invitation.json"
    fields = json.loads(path.read_bytes())
    del fields["places"], fields["signature"]
    path.write_text(json.dumps(fields, sort_keys=True, separators=(",", ":")))
    with Client.open(tmp_path / "a") as member:
        assert member.join(invitation().encode()).agreed
        body(member.answer("report", signed(plans()(1))))


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
        with people.refused(Reason.OTHER_TERMS):
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
    assert first["made"] and not keys()["made"]
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
    assert Invitation.decode(by(new)).author.key == new.author.key
