"""`sordino attack`: what somebody who sees a run's reports can reconstruct or infer."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import AsJson, Ray, WorkerCount, check_place
from sordino.cli.printing import Cell, left, print_json, print_table, right
from sordino.errors import InvalidInput
from sordino.parts.shipped import SHIPPED
from sordino.report.words import duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from sordino.audits.run_attack import Attacks
    from sordino.fleets.ray_workers import RayPool
    from sordino.privacy.leaks import Leak

_KNOWN = ", ".join(SHIPPED["attack"])


def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished simulation's folder: runs/quickstart.")],
    what: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ATTACK", help=f"{_KNOWN}, or your own as package.module:Class; may be repeated. Default: all."
        ),
    ] = None,
    client: Annotated[
        int | None, typer.Option(help="Number of the client to attack. Default: each attack chooses.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="More restarts, steps and shadow models: hours rather than minutes.")
    ] = False,
    workers: WorkerCount = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda for a GPU.")] = "cpu",
    ray: Ray = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same table.")] = 1,
    as_json: AsJson = False,
) -> None:
    """See what the server could learn: attack what the clients of a finished simulation sent.

    reconstruction rebuilds records from a report and looks for them among others. membership tells which records a
    client trained on. labels tells which classes a client has. linking recognises a client by its reports.

    Each row says how often an attack was right, with its 95 % interval: on the reports without protection, and on those
    of this run; beside it what guessing gets and the most that is proven possible. An attack is a lower bound: a better
    attacker may find more, and an attack that fails proves nothing.

    The figures go into attacks.json and report.html of the run's folder. The exit code is 1, and nothing is written, if
    an attack finds more than a proof allows.
    """
    check_place(workers, device)
    options = {"client": client, "thorough": thorough, "workers": workers, "device": device, "seed": seed}
    found = carry_out(_folder(run), what, ray=ray, **options)
    if as_json:
        print_json(found.to_json())
    else:
        print_attacks(found)


def carry_out(folder: Path, what: Sequence[str] | None, *, ray: str | None = None, **options: Any) -> Attacks:
    """Attack a run with progress on the terminal, and write down what was found; options are `AttackOptions`."""
    from sordino.audits.attack_options import AttackOptions
    from sordino.audits.run_attack import attack as attack_run
    from sordino.cli.picture_progress import PictureProgress

    with _pool(ray, options["device"], options["workers"]) as pool, PictureProgress() as progress:
        asked = AttackOptions(track=progress.track, watch=progress.watch, pool=pool, **options)
        found = attack_run(folder, what, asked)
    found.write()
    return found


def _pool(address: str | None, device: str, workers: int | None) -> AbstractContextManager[RayPool | None]:
    """The workers of a Ray cluster, where one is named."""
    if address is None:
        return nullcontext()
    from sordino.fleets.ray_workers import RayPool

    return RayPool(address, device=device, workers=workers)


def _folder(run: Path) -> Path:
    """The folder that is meant; where its name alone was given, the place that it is at."""
    if not (run / "recipe.toml").is_file() and (Path("runs") / run / "recipe.toml").is_file():
        raise InvalidInput(f"no folder {str(run)!r} here; there is a run {Path('runs') / run}: give that")
    return run


def print_attacks(found: Attacks) -> None:
    """The table, a sentence for each attack, and how far both can be relied on."""
    from sordino.report.leak_words import CAVEAT, headline, left_out_words, ordered, sentences

    folder = found.run.folder.path
    if found.leaks:
        columns = [*left("attack", "reports"), *right("right (95 % interval)", "guessing", "proven: at most")]
        print_table(f"Attacks on {folder}", columns, map(_row, ordered(found.leaks)))
        if lead := headline(found.leaks):
            typer.echo(lead)
        for sentence in sentences(found.leaks):
            typer.echo(sentence)
        typer.echo(CAVEAT)
    for one in found.left_out:
        typer.echo(left_out_words(one))
    typer.echo(f"{duration(found.seconds)}. Written: {folder / 'attacks.json'} and {folder / 'report.html'}")


def _row(leak: Leak) -> list[Cell]:
    from sordino.report.leak_words import at_most, found_words, share_words, variant_words

    figures = (found_words(leak), share_words(leak.chance), at_most(leak.bound))
    return [f"{leak.attack}, {leak.how}", variant_words(leak), *figures]
