"""Who holds which place: members that are retired, replaced and added, in a file that two processes change."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.fleets.roster import Roster, Seating, Tenure, Unknown

THREE = ("north", "east", "south")


def roster(path: Path | None = None, begun: int = 8, spare: int = 0) -> Roster:
    """Three members, all of whom came, and so many rounds."""
    found = Roster(3 + spare, path, THREE, spare=spare)
    for number, name in enumerate(THREE):
        assert found.number_of(f"id-{name}", name) == number
    found.begin(begun)
    return found


# --- first come


def test_numbers_are_kept_in_a_file_and_a_name_belongs_to_the_first(tmp_path):
    path = tmp_path / "members.json"
    found = Roster(3, path)
    assert [found.number_of(identity, "x") for identity in ("b", "a", "b", "c")] == [0, 1, 0, 2]
    with pytest.raises(Unknown, match="all 3 places"):
        found.number_of("d", "x")
    again = Roster(3, path)
    assert [again.number_of(identity, "x") for identity in ("c", "b")] == [2, 0]
    assert again.names(0) == {0: "x", 1: "x-2", 2: "x-3"}  # one name, one member
    named = Roster(2, None, ["north", "south"])
    assert named.number_of("i", "south") == 1
    with pytest.raises(Unknown, match="none"):
        named.number_of("j", "east")
    with pytest.raises(Unknown, match="first"):
        named.number_of("j", "south")


def test_a_node_that_is_registered_under_a_clients_name_speaks_for_no_other():
    found = Roster(2, None, ["north", "south"])
    with pytest.raises(Unknown, match="registered as north"):
        found.number_of("i", "south", node="north")
    for stranger in ("a machine of theirs", "east"):  # registered, and no member here, or not any more
        with pytest.raises(Unknown, match="registered as"):
            found.number_of("i", "south", node=stranger)
    assert found.number_of("i", "south", node="south") == 1
    with pytest.raises(Unknown, match="registered as north"):
        found.number_of("i", "north", node="north")  # another's identity does not help either


def test_the_node_of_a_member_that_left_before_the_first_round_speaks_for_nobody_else():
    found = Roster(3, None, ("north", "south", "east"))
    found.retire("east")
    with pytest.raises(Unknown):
        found.number_of("evil", "north", node="east")
    found.replace("south", "west")
    with pytest.raises(Unknown):
        found.number_of("evil", "west", node="south")


@pytest.mark.parametrize(
    ("names", "spare"), [(("a",), 0), (("a", "b"), 0), (("a", "b", "c", "d"), 0), (("a", "a", "b"), 0), (("a",), 1)]
)
def test_names_and_spare_places_make_up_the_recipes_clients(names, spare):
    with pytest.raises(InvalidInput):
        Roster(3, None, names, spare=spare)


@pytest.mark.parametrize("name", ["", "<b>", "a\nb", "a b", "\x1b[2J", "x" * 101, "../up"])
def test_a_name_that_could_harm_a_log_or_a_page_is_none(name):
    for attempt in (
        lambda: Roster(1, None, [name]),
        lambda: roster(spare=1).add(name),
        lambda: roster().replace("east", name),
    ):
        with pytest.raises(InvalidInput):
            attempt()


# --- retiring, replacing, adding


def test_a_retired_members_place_is_vacant_from_the_next_round_on_and_its_client_refused():
    found = roster()
    assert found.retire("east") == Tenure(1, "east", "id-east", 0, 8)
    assert (found.vacant(8), found.vacant(9)) == (frozenset(), {1})
    assert found.names(8) == dict(enumerate(THREE))
    assert found.names(9) == {0: "north", 2: "south"}
    assert found.number_of("id-east", "east", round=8) == 1  # the round that has begun still has it
    for identity, name in (("id-east", "east"), ("id-east", "west"), ("other", "east")):
        with pytest.raises(Unknown):
            found.number_of(identity, name)
    assert found.has("id-east", 1, 8) and not found.has("id-east", 1, 9)


def test_a_place_goes_to_a_new_member_at_the_stated_round_and_the_old_identity_is_refused():
    found = roster()
    assert found.replace("east", "west", 12) == Tenure(1, "west", "", 12)
    assert [found.name_of(1, round) for round in (8, 11, 12, 99)] == ["east", "east", "west", "west"]
    with pytest.raises(Unknown, match="from round 12"):
        found.number_of("id-west", "west")
    assert found.number_of("id-west", "west", round=12) == 1
    for identity in ("id-east", "another"):  # neither the predecessor nor a second client comes in as west
        with pytest.raises(Unknown):
            found.number_of(identity, "west", round=12)
    with pytest.raises(Unknown, match="registered as east"):
        found.number_of("new", "west", node="east", round=12)


def test_a_new_member_gets_the_first_vacant_place_and_a_former_one_its_own():
    found = roster(spare=2)
    assert found.add("west") == Tenure(3, "west", "", 9)
    found.retire("east")
    assert found.add("far", 20) == Tenure(1, "far", "", 20)
    assert found.add("late", 10).place == 4
    with pytest.raises(InvalidInput, match="spare"):
        found.add("nobody")
    found.retire("north")
    assert found.add("north", 11) == Tenure(0, "north", "id-north", 11)
    assert [found.vacant(round) for round in (9, 10, 11, 20)] == [{0, 1, 4}, {0, 1}, {1}, frozenset()]
    with pytest.raises(InvalidInput):  # east agreed to place 1, which is another's by then
        found.add("east")


def test_a_place_that_was_left_can_be_taken_over_by_name():
    found = roster()
    found.retire("east")
    assert found.replace("east", "west", 10) == Tenure(1, "west", "", 10)
    with pytest.raises(InvalidInput, match="west"):
        found.replace("east", "other")


def test_a_member_that_never_began_leaves_nothing_behind():
    found = roster(spare=1)
    found.add("west", 12)
    found.retire("west")
    assert all(own.name != "west" for own in found.tenures)
    assert found.vacant(12) == {3}


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.retire("nobody"),
        lambda found: found.replace("nobody", "west"),
        lambda found: found.replace("east", "north"),
        lambda found: found.replace("east", "east"),
        lambda found: found.add("east"),
        lambda found: found.add("west"),
        lambda found: found.retire("east", 8),
        lambda found: found.replace("east", "west", 3),
        lambda found: (found.retire("east", 10), found.retire("east")),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing_in_the_file(tmp_path, change):
    path = tmp_path / "members.json"
    found = roster(path)
    before = Roster.open(path).tenures
    with pytest.raises(InvalidInput):
        change(found)
    now = Roster.open(path).tenures
    assert now == found.tenures
    assert now == before or now[1].last == 9  # the first of two changes was a good one


# --- the file


def test_what_another_process_changes_is_seen_before_the_next_round(tmp_path):
    path = tmp_path / "members.json"
    running = roster(path)
    Roster.open(path).retire("east")
    assert running.vacant(9) == frozenset()
    running.begin(9)
    assert running.vacant(9) == {1}
    with pytest.raises(InvalidInput, match="round 10"):  # and what has begun is seen by the command
        Roster.open(path).add("west", 9)
    assert not running.look()


def test_commands_and_the_coordinator_write_at_once_and_nothing_is_lost(tmp_path):
    path = tmp_path / "members.json"
    names = [f"m{n}" for n in range(16)]
    Roster(16, path, names).begin(0)

    def come(number: int) -> None:
        Roster.open(path).number_of(f"id-{number}", f"m{number}")

    def leave(number: int) -> None:
        Roster.open(path).retire(f"m{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: (come if n % 2 else leave)(n), range(16)))
    found = Roster.open(path).tenures
    assert [own.identity for own in found if own.place % 2] == [f"id-{n}" for n in range(1, 16, 2)]
    assert [own.last for own in found if own.place % 2 == 0] == [0] * 8


def test_a_file_of_an_earlier_version_is_read_and_written_anew(tmp_path):
    path = tmp_path / "members.json"
    path.write_text(json.dumps({"1": {"id": "id-east", "name": "east"}}))
    with pytest.raises(InvalidInput):
        Roster.open(path)  # it does not say how many places there are
    found = Roster(3, path, THREE)
    assert found.number_of("id-east", "called otherwise by now") == 1
    assert found.names(1) == dict(enumerate(THREE))
    found.begin(4)
    found.retire("east")
    assert Roster.open(path).tenures[1] == Tenure(1, "east", "id-east", 0, 4)
    path.write_text(json.dumps({"0": {"id": "a", "name": "x"}, "2": {"id": "b", "name": "x"}}))
    assert Roster(3, path).names(1) == {0: "x", 2: "x-2"}


def damaged(**changes: object) -> str:
    packed = json.loads(Seating(2, False, 1, (Tenure(0, "north", "a"), Tenure(1, "south", "b"))).encode())
    return json.dumps({**packed, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "[]", "", "nonsense", '{"0": 3}', damaged(version=3), damaged(places=1), damaged(tenures=[{}]),
        damaged(tenures=[{"place": 0, "name": "<script>", "identity": "", "first": 0, "last": None}]),
        damaged(tenures=[{"place": 0, "name": n, "identity": "", "first": 0, "last": None} for n in "ab"]),
        damaged(tenures=[{"place": k, "name": "ab"[k], "identity": "i", "first": 0, "last": None} for k in (0, 1)]),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path, text):
    path = tmp_path / "members.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="damaged"):
        Roster(2, path)


def test_a_roster_of_another_recipe_is_refused(tmp_path):
    roster(tmp_path / "members.json")
    with pytest.raises(InvalidInput, match="3 places"):
        Roster(4, tmp_path / "members.json", ["a", "b", "c", "d"])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["retire", "replace", "add", "begin", "come"]),
        st.sampled_from("abcdef"),
        st.sampled_from("abcdef"),
        st.none() | st.integers(0, 8),
    ),
    max_size=25,
)


@given(STEPS)
def test_whatever_is_done_a_place_has_one_holder_a_round_and_the_past_stays(steps):
    found = Roster(3, None, ["a", "b"], spare=1)
    past: dict[int, dict[int, str]] = {}
    for what, name, other, round in steps:
        try:
            match what:
                case "retire":
                    found.retire(name, round)
                case "replace":
                    found.replace(name, other, round)
                case "add":
                    found.add(name, round)
                case "begin":
                    found.begin(found.begun + 1)
                    past[found.begun] = found.names(found.begun)
                case "come":
                    found.number_of(f"id-{other}", name)
        except (InvalidInput, Unknown):
            pass
        assert Seating.decode(found._seating.encode()) == found._seating  # which checks that nobody sits on another
        for begun, names in past.items():
            assert found.names(begun) == names
        for number in range(3):
            assert (number in found.vacant(found.begun + 1)) == (found.holder(number) is None)
