"""Slots, identities and invitations."""

import pytest

from sordino.durable import NotWritten
from sordino.errors import InvalidInput
from sordino.web.roster import Invitations, Roster, Turned

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
PROOF, OTHER = "1" * 64, "2" * 64


def test_an_identity_keeps_its_slot_after_a_restart(tmp_path):
    roster = Roster(tmp_path / "people", range(2))
    assert [roster.admit(who, PROOF, "page", "")[0].client for who in (A, B)] == [0, 1]
    roster.settle()
    again = Roster(tmp_path / "people", range(2))
    member, known = again.admit(B, PROOF, "page", "")
    assert (member.client, known) == (1, True)
    assert PROOF not in (tmp_path / "people").read_text()


def test_another_proof_is_refused_and_a_full_federation_too(tmp_path):
    roster = Roster(tmp_path / "people", range(1))
    roster.admit(A, PROOF, "page", "")
    with pytest.raises(Turned, match="somebody else") as caught:
        roster.admit(A, OTHER, "page", "")
    assert caught.value.code == "proof"
    with pytest.raises(Turned, match="all 1 places") as caught:
        roster.admit(B, PROOF, "page", "")
    assert caught.value.code == "full"


def test_a_slot_that_was_left_is_given_last(tmp_path):
    roster = Roster(tmp_path / "people", range(2))
    first, _ = roster.admit(A, PROOF, "page", "")
    roster.leave(first)
    assert roster.admit(B, PROOF, "page", "")[0].client == 1
    assert roster.admit(C, PROOF, "page", "")[0].client == 0
    roster.settle()
    assert Roster(tmp_path / "people", range(2)).find(A) is None


def test_who_has_left_cannot_free_the_slot_of_the_next(tmp_path):
    roster = Roster(tmp_path / "people", range(1))
    first, _ = roster.admit(A, PROOF, "page", "")
    roster.leave(first)
    second, _ = roster.admit(B, PROOF, "page", "")
    assert (roster.holds(first), roster.holds(second)) == (False, True)
    roster.leave(first)
    assert roster.members == {0: second}


def test_what_could_not_be_written_is_written_later(tmp_path):
    roster = Roster(tmp_path / "folder" / "people", range(1))
    roster.admit(A, PROOF, "page", "")
    with pytest.raises(NotWritten):
        roster.settle()
    assert roster.unsettled
    (tmp_path / "folder").mkdir()
    roster.settle()
    assert not roster.unsettled
    assert Roster(tmp_path / "folder" / "people", range(1)).find(A) is not None


def test_a_key_that_is_not_whole_invites_nobody(tmp_path):
    Invitations.kept(tmp_path, "demo-1")
    (tmp_path / "invitations.key").write_text("")
    with pytest.raises(InvalidInput, match="0 bytes"):
        Invitations.kept(tmp_path, "demo-1")


def test_a_token_admits_one_identity_to_its_slot(tmp_path):
    invitations = Invitations.kept(tmp_path, "demo-1")
    roster = Roster(tmp_path / "people", range(3), invitations)
    token = invitations.token(2)
    assert roster.admit(A, PROOF, "page", token)[0].client == 2
    assert roster.admit(A, PROOF, "page", "")[1] is True  # known by now
    for wrong in ("", "2-aaaa", token[:-1] + ("a" if token[-1] != "a" else "b"), "3" + token[1:], "\u0662-x", token):
        with pytest.raises(Turned) as caught:
            roster.admit(B, PROOF, "page", wrong)
        assert caught.value.code == "token"


def test_tokens_are_the_same_after_a_restart_and_others_elsewhere(tmp_path):
    found = Invitations.kept(tmp_path, "demo-1").token(0)
    assert Invitations.kept(tmp_path, "demo-1").token(0) == found
    assert Invitations.kept(tmp_path, "demo-2").token(0) != found
    assert (tmp_path / "invitations.key").stat().st_mode & 0o077 == 0


def test_a_damaged_roster_is_refused(tmp_path):
    (tmp_path / "people").write_text('{"what": "joined"}\n')
    with pytest.raises(InvalidInput, match="damaged"):
        Roster(tmp_path / "people", range(1))
