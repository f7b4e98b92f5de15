"""Members that leave, are replaced and come while a set-up runs: the roster, node keys and invitations.

It is done where the server's folder is: the coordinator there looks at its roster before every round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sordino.deploy.deployment import FILE, SERVER, Deployment, FederationSetup
from sordino.deploy.setup import check_member, invite, make_node, write_deployment, write_invitation
from sordino.errors import InvalidInput
from sordino.fleets.roster import Roster, Tenure
from sordino.flower.coordinator import KEY, MEMBERS, CoordinatorSettings, is_over, read_recipe
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.runs.roster_check import roster_warnings
from sordino.storage.files import write_whole
from sordino.wire.signing import SigningKey

_ANOTHER = "Another run is another federation: sordino deploy add-federation FOLDER --recipe RECIPE --federation NAME"


@dataclass(frozen=True)
class MemberChange:
    """What became of a member in one federation."""

    federation: str
    tenure: Tenure
    warnings: tuple[str, ...]  #: what it means for the rounds to come


@dataclass(frozen=True)
class _Place:
    """A federation of a set-up, at the server."""

    setup: FederationSetup
    folder: Path  #: the coordinator's

    @property
    def recipe(self) -> Recipe:
        return read_recipe(self.folder)

    @property
    def is_over(self) -> bool:
        """Whether its run is over: nobody takes part any more."""
        return is_over(self.folder)

    def check_round(self, from_round: int | None) -> None:
        """Refuse a change from a round on that this federation does not have."""
        last, coming = self.recipe.rounds.count, max(1, self.roster().begun + 1)
        if (from_round or coming) > last:
            began = "which has begun" if coming > last else f"and the next is {coming}"
            raise InvalidInput(
                f"{self.setup.name} ends with round {last}, {began}: a change from round {from_round or coming} on "
                f"would never count. {_ANOTHER}"
            )

    def roster(self) -> Roster:
        settings = CoordinatorSettings.read(self.folder)
        return Roster(self.recipe.number_of_clients, self.folder / MEMBERS, settings.members, spare=settings.spare)


def retire(folder: Path, member: str, federation: str = "", from_round: int | None = None) -> list[MemberChange]:
    """Leave a member's place vacant from a round on, the next if left out: in one federation, or in all it is in."""
    places = _places(folder, federation, member, from_round)
    return [_changed(place, lambda roster: roster.retire(member, from_round)) for place in places]


def replace_member(
    folder: Path, member: str, new: str, federation: str = "", from_round: int | None = None
) -> tuple[Path, list[MemberChange]]:
    """Give a member's place to a new one, which gets a machine's folder of its own; where that is."""
    places = _places(folder, federation, member, from_round)
    return _admit(folder, new, places, lambda roster: roster.replace(member, new, from_round))


def add(
    folder: Path, member: str, federation: str = "", from_round: int | None = None
) -> tuple[Path, list[MemberChange]]:
    """Give a vacant place to a new member, which gets a machine's folder of its own; where that is."""
    places = _places(folder, federation, "", from_round)
    return _admit(folder, member, places, lambda roster: roster.add(member, from_round))


def _places(folder: Path, federation: str, member: str, from_round: int | None) -> list[_Place]:
    """The federations that a change is about: the one that is named, or all (of a member) that are not over."""
    deployment = Deployment.read(folder)
    server = deployment.place(folder, SERVER)
    if deployment.machine not in ("", SERVER) or not server.is_dir():
        raise InvalidInput(
            f"{folder} does not hold the server: change members on the server's machine, in its folder, since the "
            "coordinator there looks at them before every round"
        )
    known = [each for each in deployment.federations if not federation or each.name == federation]
    if not known:
        names = ", ".join(each.name for each in deployment.federations)
        raise InvalidInput(f"there is no federation {federation!r} in {folder}; there are {names}")
    found = [each for each in known if not member or member in each.members]
    if not found:
        raise InvalidInput(f"{member} is no member: there are {', '.join(known[0].members)}")
    places = [_Place(each, each.coordinator_in(server)) for each in found]
    going = [place for place in places if not place.is_over]
    if not going:
        names = ", ".join(each.name for each in found)
        raise InvalidInput(f"{names} is over: nobody comes or leaves any more. {_ANOTHER}")
    for place in going:  # all are looked at before any is changed
        place.check_round(from_round)
    return going


def _changed(place: _Place, change: Callable[[Roster], Tenure]) -> MemberChange:
    roster = place.roster()
    tenure = change(roster)
    return MemberChange(place.setup.name, tenure, roster_warnings(place.recipe, roster))


def _admit(
    folder: Path, new: str, places: list[_Place], change: Callable[[Roster], Tenure]
) -> tuple[Path, list[MemberChange]]:
    """A new member: its seats first, since these may be refused, then node key, invitations and folder."""
    check_member(new)
    deployment = Deployment.read(folder)
    server, home = deployment.place(folder, SERVER), folder if not deployment.machine else folder / "new-members"
    changes = [_changed(place, change) for place in places]
    if new not in deployment.members:
        make_node(server, home / new)
        deployment = replace(deployment, members=(*deployment.members, new))
    setups = {each.name: each for each in deployment.federations}
    for place, made in zip(places, changes, strict=True):
        if new in setups[place.setup.name].members:
            continue  # a former member, whose agreement names this very place
        key, wired = SigningKey.at(place.folder / KEY), wire(place.recipe)
        invitation, options, asks = invite(wired, place.setup.name, key, made.tenure.place, new)
        own = setups[place.setup.name]
        setups[own.name] = replace(
            own, members=(*own.members, new), numbers=(*own.numbers, made.tenure.place),
            options=(*own.options, options), asks=(*own.asks, asks),
        )  # fmt: skip
        write_invitation(home / new, own, invitation)
    deployment = replace(deployment, federations=tuple(setups.values()))
    write_deployment(home, replace(deployment, machine=""))
    if deployment.machine:
        write_whole(folder / FILE, deployment.to_toml().encode())
        (home / FILE).unlink()
    return home / new, changes


__all__ = ["MemberChange", "add", "replace_member", "retire"]
