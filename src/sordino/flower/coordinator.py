"""The coordinator of a federation over Flower: a process of its operator's own, with its key, its run and its members.

    coordinator.toml    the operator's settings
    recipe.toml         the recipe, complete
    coordinator.key     signs plans; whoever can read it speaks for the coordinator
    coordinator.sock    where the relay connects that Flower runs
    members.json        who has which number
    run/                rounds, model, statement, report

It needs no Flower: a relay in Flower's `ServerApp` carries bytes between the socket and the nodes (`relay.py`). A
process that is started again goes on where the run's folder says that it stopped: the same plan goes out again, and
clients give the answers that they have recorded.
"""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sordino.client.settings import NAME
from sordino.errors import InvalidInput
from sordino.fleets.carrier import Carrier
from sordino.flower.relay import RelayedCarrier
from sordino.parts.toml import inline
from sordino.report.metric_words import ACCURACY
from sordino.report.private_figures import WHERE, leading
from sordino.report.words import capital, decimal
from sordino.runs.observer import Observer
from sordino.storage.files import make_folder, write_whole
from sordino.wire.signing import SigningKey

if TYPE_CHECKING:
    from sordino.fleets.roster import Roster
    from sordino.recipe import Recipe
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation
    from sordino.runs.outcome import Outcome

WAIT = 600.0  #: seconds in which enough clients must have joined
PATIENCE = 60.0  #: seconds until a client that cannot be reached is not waited for any more
FILE, RECIPE, KEY, SOCKET = "coordinator.toml", "recipe.toml", "coordinator.key", "coordinator.sock"
MEMBERS, RUN = "members.json", "run"
SHUFFLER_FILES = "give shuffler_token and shuffler_key, the server's files for it, in coordinator.toml"

log = logging.getLogger("sordino.flower")


@dataclass(frozen=True)
class CoordinatorSettings:
    """What `coordinator.toml` says. Paths are within its folder, unless they are whole ones."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    federation: str  #: the name that clients agree to
    members: tuple[str, ...] = ()  #: the clients' names in the order of their numbers; empty: in order of appearance
    spare: int = 0  #: places after those of the members that nobody holds yet
    wait: float = WAIT  #: seconds in which all clients may join; later ones take part from then on
    patience: float = PATIENCE  #: seconds until a client that cannot be reached is not waited for
    gateways: int = 0  #: nodes that answer for equal shares of the clients each (`sordino serve --gateway`); 0: none
    group: str = ""  #: whose accounts may open the socket too: that of Flower's server
    shuffler_token: str = ""  #: the server's files for a shuffler's service, where reports go through one
    shuffler_key: str = ""
    shuffler_trusted: str = ""  #: the certificate of a test set-up

    def __post_init__(self) -> None:
        for name in (self.federation, *self.members):
            if not NAME.fullmatch(name):
                raise InvalidInput(
                    "names of federation and members have letters, digits, dots, - and _, at most 100, got "
                    f"{name[:120]!r}"
                )
        if not (self.wait > 0 and self.patience > 0 and self.gateways >= 0):
            raise InvalidInput(
                f"wait and patience are seconds > 0 and gateways a number, got {self.wait!r}, {self.patience!r} and "
                f"{self.gateways!r}"
            )

    def shuffler(self, folder: Path) -> dict[str, Path]:
        """The server's files for a shuffler's service, by name."""
        files = {"token": self.shuffler_token, "key": self.shuffler_key, "trusted": self.shuffler_trusted}
        return {name: folder / path for name, path in files.items() if path}

    def to_toml(self) -> str:
        """The file."""
        lines = [f"{name} = {inline(value)}" for name, value in asdict(self).items()]
        return "\n".join(
            ["# The coordinator of a federation over Flower: sordino coordinator serve FOLDER", *lines, ""]
        )

    @classmethod
    def read(cls, folder: Path) -> CoordinatorSettings:
        """The settings in a coordinator's folder."""
        path = folder / FILE
        try:
            return TypeAdapter(cls).validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InvalidInput(
                f"{path} is missing: {folder} is no coordinator's folder. Make one: sordino coordinator init FOLDER "
                "--recipe RECIPE"
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidInput(f"{path} cannot be read ({error}): correct it") from None
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise InvalidInput(f"{path}: {said}. Correct it") from None


def make_coordinator(folder: Path, recipe: Recipe, settings: CoordinatorSettings, key: SigningKey) -> None:
    """Write a coordinator's folder, readable by its owner alone; it must not exist, or be empty."""
    check_members(recipe, settings)
    make_folder(folder, 0o700)
    if any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty: give a new folder")
    folder.chmod(0o700)
    key.write(folder / KEY)
    write_whole(folder / RECIPE, recipe.to_toml().encode())
    write_whole(folder / FILE, settings.to_toml().encode())  # last: now it is whole


def check_members(recipe: Recipe, settings: CoordinatorSettings) -> None:
    """Refuse a recipe that real clients cannot run, and names that do not fit it."""
    from sordino.client.invitation import check_real

    check_real(recipe)
    nodes, members = settings.gateways or recipe.number_of_clients, settings.members
    if members and (len(members) + settings.spare != nodes or len(set(members)) != len(members)):
        raise InvalidInput(
            f"members names {len(members)} clients ({len(set(members))} different ones), spare is {settings.spare} and "
            f"the recipe has {nodes}: name each once, or none at all"
        )


def read_recipe(folder: Path) -> Recipe:
    """The recipe in a coordinator's folder."""
    from sordino.recipe import Recipe

    return Recipe.load(folder / RECIPE)


def is_over(folder: Path) -> bool:
    """Whether the run in a coordinator's folder is over, with its report written."""
    from sordino.report.folder import RunFolder

    return RunFolder(folder / RUN).final_result() is not None


def serve_coordinator(
    folder: Path, socket: Path | None = None, group: str | None = None, observers: Sequence[Observer] = ()
) -> Outcome:
    """Run the federation in a coordinator's folder over the relay that connects to its socket, to its end."""
    settings, recipe = CoordinatorSettings.read(folder), read_recipe(folder)
    check_members(recipe, settings)
    if not (folder / KEY).is_file():
        raise InvalidInput(
            f"{folder / KEY} is missing, and clients answer to that key alone: restore it from a backup, or make "
            "another federation"
        )
    path, group = socket or folder / SOCKET, settings.group if group is None else group
    with closing(RelayedCarrier(path, settings.federation, group=group)) as carrier:
        log.info(f"the coordinator of {settings.federation} listens at {path}")
        outcome = coordinate(recipe, carrier, settings, folder, observers)
        carrier.end()
        return outcome


def coordinate(
    recipe: Recipe,
    carrier: Carrier,
    settings: CoordinatorSettings,
    folder: Path,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Run a recipe over a carrier, from the start or from where the folder says that it stopped."""
    from sordino.fleets.flower import FlowerFleet
    from sordino.fleets.gateways import Gateways
    from sordino.fleets.roster import Roster
    from sordino.runs.serving import CoordinatorSetup, has_run, serve, shuffler_channel

    run, nodes = folder / RUN, settings.gateways or recipe.number_of_clients
    roster = Roster(nodes, folder / MEMBERS, settings.members, spare=settings.spare)
    quorum = 1 if settings.gateways else recipe.rounds.quorum
    fleet = FlowerFleet(carrier, roster, wait=settings.wait, patience=settings.patience, quorum=quorum)
    people = Gateways(fleet, recipe.number_of_clients, nodes) if settings.gateways else fleet
    again = has_run(run)
    coming = nodes - len(roster.vacant(roster.begun + 1))  # nobody is waited for at a vacant place
    log.info(
        f"{settings.federation}: {'going on with' if again else 'beginning'} the run in {run}; waiting up to "
        f"{settings.wait:g} seconds for {coming} {'gateways' if settings.gateways else 'clients'}"
    )
    channel = shuffler_channel(recipe, settings.shuffler(folder), remedy=SHUFFLER_FILES)
    setup = CoordinatorSetup(settings.federation, channel, folder / KEY)
    outcome = serve(recipe, people, run, setup, resume=again, observer=[_LogObserver(roster), *observers])
    fleet.close()
    quality = _quality(outcome.result.metric, outcome.score)
    log.info(f"{settings.federation} is over: {outcome.result.stopped}. {quality}See {run}")
    return outcome


class _LogObserver(Observer):
    """What happens, in the log."""

    def __init__(self, roster: Roster) -> None:
        self._roster, self._said = roster, dict[str, str]()

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        for sentence in preflight:
            log.info(sentence)

    def absent(self, reasons: Mapping[int, str]) -> None:
        vacant = self._roster.vacant(self._roster.begun + 1)
        for client, reason in reasons.items():
            if client not in vacant:
                log.info(f"{self._roster.name_of(client)} does not take part: {reason}")

    def preparing(self, clients: int) -> None:
        log.info(f"{clients} clients prepare")

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        counts = {"declined": record.declined, "refused": record.refused, "late": record.late}
        others = "".join(f", {count} {what}" for what, count in counts.items() if count)
        lost = "" if record.counted else ", and it does not count"
        came = f"{record.reported} of {record.asked} clients reported{others}{lost}"
        quality = _quality(record.metric or ACCURACY, record.score if record.metric else record.accuracy)
        private = "" if record.private is None else f"{capital(leading(record.private))} {WHERE}. "
        log.info(f"round {record.round}: {came}. {quality}{private}{record.seconds:.1f} s")
        for why in attendance.lost:
            log.info(f"round {record.round}: {why}")
        reasons = {attendance.called(client): why for client, why in sorted(attendance.reasons.items())}
        for who, why in reasons.items():
            if self._said.get(who) != why:
                log.info(f"{who}: {why}")
        self._said = reasons


def _quality(metric: str, value: float | None) -> str:
    """The run's figure by its metric, as a sentence; nothing where it was not evaluated."""
    return "" if value is None else f"{capital(metric)} {f'{value:.2%}' if metric == ACCURACY else decimal(value)}. "


@contextmanager
def said_aloud() -> Iterator[None]:
    """Let this process's output have what Sordino says."""
    out = logging.StreamHandler(sys.stdout)
    level = log.level
    log.addHandler(out)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(out)
        log.setLevel(level)


__all__ = [
    "KEY", "RECIPE", "RUN", "SOCKET", "CoordinatorSettings", "coordinate", "is_over", "make_coordinator",
    "read_recipe", "said_aloud", "serve_coordinator",
]  # fmt: skip
