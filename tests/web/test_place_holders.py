"""Slots, identities, invitations and receipts."""

import os
from pathlib import Path

import pytest

from sordino.errors import InvalidInput
from sordino.storage.files import NotWritten
from sordino.web.limits import Limits, network
from sordino.web.places import Invitations, Member, Places, Receipts, TurnedAway

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
PROOF, OTHER = "1" * 64, "2" * 64


def test_an_identity_keeps_its_slot_after_a_restart(tmp_path):
    places = Places(tmp_path / "people", range(2))
    assert [places.admit(who, PROOF, "page", "")[0].client for who in (A, B)] == [0, 1]
    places.settle()
    again = Places(tmp_path / "people", range(2))
    member, known = again.admit(B, PROOF, "page", "")
    assert (member.client, known) == (1, True)
    assert PROOF not in (tmp_path / "people").read_text()


def test_another_proof_is_refused_and_a_full_federation_too(tmp_path):
    places = Places(tmp_path / "people", range(1))
    places.admit(A, PROOF, "page", "")
    with pytest.raises(TurnedAway, match="somebody else") as caught:
        places.admit(A, OTHER, "page", "")
    assert caught.value.code == "proof"
    with pytest.raises(TurnedAway, match="all 1 places") as caught:
        places.admit(B, PROOF, "page", "")
    assert caught.value.code == "full"


def test_who_has_agreed_is_known_after_a_restart_and_not_of_the_next_in_its_place(tmp_path):
    places = Places(tmp_path / "people", range(1))
    first, _ = places.admit(A, PROOF, "native", "")
    assert not places.agreed(first)
    places.agree(first)
    places.settle()
    again = Places(tmp_path / "people", range(1))
    assert again.agreed(first)
    again.agree(first)
    assert not again.unsettled  # it is written once
    again.leave(first)
    second, _ = again.admit(B, PROOF, "native", "")
    assert not again.agreed(first) and not again.agreed(second)


def test_a_slot_that_was_left_is_given_last(tmp_path):
    places = Places(tmp_path / "people", range(2))
    first, _ = places.admit(A, PROOF, "page", "")
    places.leave(first)
    assert places.admit(B, PROOF, "page", "", "another network")[0].client == 1
    assert places.admit(C, PROOF, "page", "")[0].client == 0
    places.settle()
    assert Places(tmp_path / "people", range(2)).find(A) is None


def test_who_left_and_comes_back_has_its_number_if_nobody_else_has(tmp_path):
    places = Places(tmp_path / "people", range(3))
    first, _ = places.admit(A, PROOF, "native", "")
    places.leave(first)
    assert places.admit(A, PROOF, "native", "") == (first, False)
    places.leave(first)
    places.settle()
    again = Places(tmp_path / "people", range(3))
    assert again.admit(A, PROOF, "native", "") == (first, False)
    again.leave(first)
    assert [again.admit(who, PROOF, "page", "", who)[0].client for who in (B, C, "d" * 32)] == [1, 2, 0]


def test_places_of_native_clients_that_never_agreed_are_free_again_after_a_restart_when_they_are_needed(tmp_path):
    places = Places(tmp_path / "people", range(2))
    for who in (A, B):
        places.come(places.admit(who, PROOF, "native", "")[0])
    places.agree(places.members[1])
    with pytest.raises(TurnedAway):
        places.admit(C, PROOF, "page", "")
    places.settle()
    again = Places(tmp_path / "people", range(2))
    assert again.admit(C, PROOF, "page", "")[0].client == 0
    with pytest.raises(TurnedAway):
        again.admit(A, PROOF, "native", "")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def absent(tmp_path, clock, slots=2, most=40, **options):
    """A places with an absence of 600 seconds, and the places that it takes from their holders."""
    freed = []
    kind = type("Clocked", (Places,), {"_clock": staticmethod(clock)})
    places = kind(
        tmp_path / "people", range(slots), limits=Limits(places=most, absence=600.0), freed=freed.append, **options
    )
    return places, freed


def closes(places, who, network=""):
    """Joins, and closes the window."""
    member, _ = places.admit(who, PROOF, "page", "", network)
    places.come(member)
    places.go(member)
    return member


def test_a_place_is_kept_for_the_announced_absence_and_then_given_to_who_needs_it(tmp_path):
    clock = Clock()
    places, freed = absent(tmp_path, clock)
    first = closes(places, A)
    clock.now = 10.0
    closes(places, B)
    clock.now = 599.0
    assert places.free == 0
    with pytest.raises(TurnedAway) as caught:
        places.admit(C, PROOF, "page", "")
    assert caught.value.code == "full"
    clock.now = 600.0
    assert places.free == 1 and places.holds(first)  # nobody needs it yet
    member, known = places.admit(C, PROOF, "page", "")
    assert (member.client, known, freed) == (first.client, False, [first.client])  # the longest absent, and it alone
    places.come(member)
    clock.now = 10_000.0
    assert places.free == 1  # who is here keeps its place
    back, known = places.admit(A, PROOF, "page", "")
    assert (back.client, known) == (1, False)  # who comes back too late gets another
    places.settle()
    assert sorted(member.id for member in Places(tmp_path / "people", range(2)).members.values()) == [A, C]


def test_who_comes_back_in_time_has_its_place_and_all_of_its_time_again(tmp_path):
    clock = Clock()
    places, freed = absent(tmp_path, clock, 1)
    member = closes(places, A)
    clock.now = 599.0
    assert places.admit(A, PROOF, "page", "") == (member, True)
    for _ in range(2):
        places.come(member)
    places.go(member)  # one of two windows
    clock.now = 5000.0
    assert places.free == 0
    places.go(member)
    clock.now = 5599.0
    with pytest.raises(TurnedAway):
        places.admit(B, PROOF, "page", "")
    assert freed == []


def test_after_a_restart_everybody_is_absent_since_the_start(tmp_path):
    clock = Clock()
    places, _ = absent(tmp_path, clock, 1)
    closes(places, A)
    places.settle()
    clock.now = 500.0
    again, _ = absent(tmp_path, clock, 1)
    clock.now = 1099.0
    assert again.free == 0
    clock.now = 1100.0
    assert again.admit(B, PROOF, "page", "")[0].client == 0


def test_an_address_that_has_all_it_may_gets_the_place_of_its_own_absent_alone(tmp_path):
    clock = Clock()
    places, freed = absent(tmp_path, clock, 3, most=1)
    closes(places, A, "elsewhere")
    clock.now = 10.0
    own = closes(places, B, "here")
    clock.now = 605.0  # A alone is absent for too long
    with pytest.raises(TurnedAway) as caught:
        places.admit(C, PROOF, "page", "", "here")
    assert caught.value.code == "address"
    clock.now = 610.0
    places.admit(C, PROOF, "page", "", "here")
    assert freed == [own.client]


def test_places_of_the_invited_are_kept(tmp_path):
    clock, invitations = Clock(), Invitations.kept(tmp_path, "demo-1")
    places, _ = absent(tmp_path, clock, 1, invitations=invitations)
    member, _ = places.admit(A, PROOF, "page", invitations.token(0))
    clock.now = 1e6
    assert places.free == 0 and places.holds(member)
    places.leave(member)
    assert places.free == 1
    assert not places.admit(B, PROOF, "page", invitations.token(0))[1]  # the token admits again


def test_who_has_left_cannot_free_the_slot_of_the_next(tmp_path):
    places = Places(tmp_path / "people", range(1))
    first, _ = places.admit(A, PROOF, "page", "")
    places.leave(first)
    second, _ = places.admit(B, PROOF, "page", "")
    assert (places.holds(first), places.holds(second)) == (False, True)
    places.leave(first)
    assert places.members == {0: second}


def test_what_could_not_be_written_is_written_later(tmp_path):
    places = Places(tmp_path / "folder" / "people", range(1))
    places.admit(A, PROOF, "page", "")
    with pytest.raises(NotWritten):
        places.settle()
    assert places.unsettled
    (tmp_path / "folder").mkdir()
    places.settle()
    assert not places.unsettled
    assert Places(tmp_path / "folder" / "people", range(1)).find(A) is not None


def test_a_key_that_is_not_whole_invites_nobody(tmp_path):
    Invitations.kept(tmp_path, "demo-1")
    (tmp_path / "invitations.key").write_text("")
    with pytest.raises(InvalidInput, match="0 bytes"):
        Invitations.kept(tmp_path, "demo-1")


def test_a_token_admits_one_identity_to_its_slot(tmp_path):
    invitations = Invitations.kept(tmp_path, "demo-1")
    places = Places(tmp_path / "people", range(3), invitations)
    token = invitations.token(2)
    assert places.admit(A, PROOF, "page", token)[0].client == 2
    assert places.admit(A, PROOF, "page", "")[1] is True  # known by now
    for wrong in ("", "2-aaaa", token[:-1] + ("a" if token[-1] != "a" else "b"), "3" + token[1:], "\u0662-x", token):
        with pytest.raises(TurnedAway) as caught:
            places.admit(B, PROOF, "page", wrong)
        assert caught.value.code == "token"


def test_tokens_are_the_same_after_a_restart_and_others_elsewhere(tmp_path):
    found = Invitations.kept(tmp_path, "demo-1").token(0)
    assert Invitations.kept(tmp_path, "demo-1").token(0) == found
    assert Invitations.kept(tmp_path, "demo-2").token(0) != found
    assert (tmp_path / "invitations.key").stat().st_mode & 0o077 == 0


def test_the_key_of_invitations_is_its_owners_alone_from_the_first_byte_on(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "chmod", None)  # too late: somebody may have opened it by then
    before = os.umask(0)
    try:
        Invitations.kept(tmp_path, "demo-1")
    finally:
        os.umask(before)
    assert (tmp_path / "invitations.key").stat().st_mode & 0o777 == 0o600


def test_one_network_takes_so_many_places_and_others_the_rest(tmp_path):
    places = Places(tmp_path / "people", range(4), limits=Limits(places=2))
    first, _ = places.admit(A, PROOF, "page", "", "here")
    places.admit(B, PROOF, "page", "", "here")
    with pytest.raises(TurnedAway, match=r"2 places.*network address") as caught:
        places.admit(C, PROOF, "page", "", "here")
    assert caught.value.code == "address"
    assert places.admit(A, PROOF, "page", "", "elsewhere") == (first, True)  # who has a place keeps it
    with pytest.raises(TurnedAway):
        places.admit(C, PROOF, "page", "", "here")  # and to move on makes no room for more
    assert not places.admit(C, PROOF, "page", "", "elsewhere")[1]
    places.leave(first)
    assert not places.admit("d" * 32, PROOF, "page", "", "here")[1]


def test_who_comes_back_after_a_restart_counts_where_it_comes_from(tmp_path):
    places = Places(tmp_path / "people", range(3), limits=Limits(places=1))
    places.admit(A, PROOF, "page", "", "here")
    places.settle()
    assert "here" not in (tmp_path / "people").read_text()
    again = Places(tmp_path / "people", range(3), limits=Limits(places=1))
    again.admit(A, PROOF, "page", "", "here")
    with pytest.raises(TurnedAway):
        again.admit(B, PROOF, "page", "", "here")


def test_the_invited_may_all_come_from_one_network(tmp_path):
    invitations = Invitations.kept(tmp_path, "demo-1")
    places = Places(tmp_path / "people", range(2), invitations, limits=Limits(places=1))
    for client, who in enumerate((A, B)):
        assert places.admit(who, PROOF, "page", invitations.token(client), "here")[0].client == client


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::9", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("a-socket", "another", False),
    ],
    ids=str,
)
def test_addresses_that_one_customer_has_count_as_one(one, other, same):
    assert (network(one) == network(other)) is same


def test_a_damaged_roster_is_refused(tmp_path):
    (tmp_path / "people").write_text('{"what": "joined"}\n')
    with pytest.raises(InvalidInput, match="damaged"):
        Places(tmp_path / "people", range(1))


def test_receipts_are_their_makers_and_are_there_after_a_restart(tmp_path):
    kept = Receipts(tmp_path / "r")
    one, other = (Member(0, who, PROOF, "native") for who in (A, B))
    kept.take(one, b"of one")
    assert (kept.of(one), kept.of(other)) == (b"of one", b"")
    assert Receipts(tmp_path / "r").of(one) == b""  # not yet on disk
    kept.settle()
    assert Receipts(tmp_path / "r").of(one) == b"of one"
    (tmp_path / "r").write_text('["no receipts"]')
    with pytest.raises(InvalidInput, match="damaged"):
        Receipts(tmp_path / "r")
