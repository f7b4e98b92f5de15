"""The coordinator inside Flower's `ServerApp`: a recipe over a SuperLink's nodes, kept under the federation's name.

An app that is started again (`flwr run` once more, after whatever ended the last one) goes on where the run's folder
says that it stopped: the same plan goes out again, and clients give the answers that they have recorded.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.flower import require
from sordino.flower.app import RunConfig
from sordino.report.metric_words import ACCURACY
from sordino.report.words import capital, decimal
from sordino.runs.observer import Observer

require()

from flwr.app import Context  # noqa: E402 (after what says that it is missing)
from flwr.serverapp import Grid, ServerApp  # noqa: E402

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation
    from sordino.runs.outcome import Outcome

log = logging.getLogger("sordino.flower")
SHUFFLER_FILES = "the run's configuration needs shuffler-token and shuffler-key, the server's files for it here"


def server_app(recipe: str | Path) -> ServerApp:
    """The app that runs the recipe in this file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from sordino.recipe import Recipe

        with said_aloud():
            coordinate(Recipe.load(recipe), grid, RunConfig.read(context.run_config))

    return app


def coordinate(recipe: Recipe, grid: Grid, config: RunConfig) -> Outcome:
    """Run a recipe over a grid, from the start or from where its folder says that it stopped."""
    from sordino.fleets.flower import FlowerFleet, Roster
    from sordino.fleets.gateways import Gateways
    from sordino.runs.serving import CoordinatorSetup, has_run, serve, shuffler_channel

    folder = config.runs / config.federation
    nodes = config.gateways or recipe.number_of_clients
    roster = Roster(nodes, members_file(folder), config.members)
    fleet = FlowerFleet(grid, roster, wait=config.wait, patience=config.patience)
    people = Gateways(fleet, recipe.number_of_clients, nodes) if config.gateways else fleet
    again = has_run(folder)
    log.info(
        f"{config.federation}: {'going on with' if again else 'beginning'} the run in {folder}; waiting up to "
        f"{config.wait:g} seconds for {nodes} {'gateways' if config.gateways else 'clients'}"
    )
    channel = shuffler_channel(recipe, config.shuffler, remedy=SHUFFLER_FILES)
    setup = CoordinatorSetup(config.federation, channel, config.coordinator_key)
    outcome = serve(recipe, people, folder, setup, resume=again, observer=_LogObserver())
    fleet.close()
    quality = _quality(outcome.result.metric, outcome.score)
    log.info(f"{config.federation} is over: {outcome.result.stopped}. {quality}See {folder}")
    return outcome


def members_file(folder: Path) -> Path:
    """Which client has which number: beside the run's folder, since clients agree to their number before it begins."""
    return folder.with_name(f"{folder.name}.members.json")


class _LogObserver(Observer):
    """What happens, in the log that `flwr log` shows."""

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        for sentence in preflight:
            log.info(sentence)

    def absent(self, reasons: Mapping[int, str]) -> None:
        for client, reason in reasons.items():
            log.info(f"client {client} does not take part: {reason}")

    def preparing(self, clients: int) -> None:
        log.info(f"{clients} clients prepare")

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        counts = {"declined": record.declined, "refused": record.refused, "late": record.late}
        others = "".join(f", {count} {what}" for what, count in counts.items() if count)
        lost = "" if record.counted else ", and it does not count"
        came = f"{record.reported} of {record.asked} clients reported{others}{lost}"
        quality = _quality(record.metric or ACCURACY, record.score if record.metric else record.accuracy)
        log.info(f"round {record.round}: {came}. {quality}{record.seconds:.1f} s")


def _quality(metric: str, value: float | None) -> str:
    """The run's figure by its metric, as a sentence; nothing where it was not evaluated."""
    return "" if value is None else f"{capital(metric)} {f'{value:.2%}' if metric == ACCURACY else decimal(value)}. "


@contextmanager
def said_aloud() -> Iterator[None]:
    """Let this process's output have what Sordino says: Flower passes it on to `flwr log`."""
    out = logging.StreamHandler(sys.stdout)
    level = log.level
    log.addHandler(out)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(out)
        log.setLevel(level)


__all__ = ["coordinate", "members_file", "said_aloud", "server_app"]
