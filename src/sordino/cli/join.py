"""`sordino join`: take part in a federation of web pages, with a client of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli import options
from sordino.cli.client import data_table
from sordino.cli.printing import json_figure, print_json, stoppable
from sordino.errors import InvalidInput
from sordino.privacy.terms import adjacency_named
from sordino.wire.tls_address import trusting

if TYPE_CHECKING:
    from sordino.client.client import Client
    from sordino.client.offer import Offer
    from sordino.web.native_participant import ParticipationResult


LARGEST_DELTA = 0.01  #: that a server may suggest; an owner may say more


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's address, or the link of an invitation.")],
    data: Annotated[str | None, typer.Option(help=options.DATA)] = None,
    budget: Annotated[float | None, typer.Option(help=options.BUDGET)] = None,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The client's folder: made if it is not there, and used again.")
    ] = Path("sordino-client"),
    federation: Annotated[str, typer.Option(help="Which federation, where the server has several.")] = "",
    token: Annotated[str, typer.Option(help="The invitation's token, where it is not part of the link.")] = "",
    rows: options.Rows = None,
    label: options.Label = None,
    classes: options.Classes = None,
    columns: options.Columns = None,
    labels: options.Labels = None,
    target: options.Target = None,
    delta: Annotated[
        float | None, typer.Option(help="The delta at which epsilon is counted; the federation's if left out.")
    ] = None,
    adjacency: Annotated[str | None, typer.Option(help=f"{options.ADJACENCY}; the federation's if left out.")] = None,
    claimed: Annotated[bool, typer.Option("--claimed", help="Count claimed epsilons, which nothing proves.")] = False,
    unproven: options.Unproven = None,
    trusted: options.Trusted = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds for which a server that cannot be reached is tried again.")
    ] = 300.0,
    yes: options.Yes = False,
    leave: Annotated[
        bool, typer.Option("--leave", help="Give your place back, so that another can have it. The ledger stays.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Take part in a federation that `sordino serve` hosts, with your own records, budget and ledger.

    What would leave is shown first, and nothing is agreed to unless you say so. The client's folder is that of
    `sordino client`: look at it with `sordino client show FOLDER`. Stop with Ctrl-C: your place is kept, and the same
    command goes on.
    """
    options.check_folder(folder, "--folder")
    import torch

    from sordino.client.client import Client
    from sordino.web.native_participant import Link, Participant, locate

    torch.set_num_threads(1)  # records are trained on one by one: more threads only wait for each other
    trust = trusting(trusted)
    link, task = locate(Link.parse(url, federation, token), trust)
    own = data_table(data, rows, label, classes, columns, labels, target)
    wishes = _Wishes(own, budget, delta, adjacency, claimed, tuple(unproven or ()))
    if (folder / "client.toml").exists():
        wishes.check_same(folder / "client.toml")
    elif leave:
        raise InvalidInput(f"{folder} is no client's folder, so nobody has a place to leave: name it, --folder")
    else:
        _make_client(folder, wishes, task["budget"] or {})
    keeps = f"Your place in {link.name} is kept: the same command goes on; with --leave it is given back."
    with Client.open(folder) as client, stoppable(lambda: keeps):
        say = partial(typer.echo, err=as_json)
        participant = Participant(client, link, task["federation"], partial(_agrees, yes), say, trust, patience)
        result = participant.leave() if leave else participant.take_part()
        if as_json:
            _print_json(client, result)
        elif leave:
            typer.echo(f"You have left {link.name}. What was recorded stays in {folder}.")
        else:
            typer.echo(
                f"{link.name} is over: {result.ended}. You reported in {result.answered} rounds and declined "
                f"{result.declined}."
            )
            typer.echo(f"The model and its report: {link.server}/api/federations/{link.name}/report.html")


def _agrees(yes: bool, offer: Offer) -> bool:
    typer.echo(offer.to_text(), err=True)
    try:
        return yes or typer.confirm(f"Join {offer.invitation.federation}?", err=True)
    except typer.Abort:  # Ctrl-C, or nobody who could answer
        return False


@dataclass(frozen=True)
class _Wishes:
    """What the owner's options say; None where they say nothing."""

    data: dict[str, object]  #: of the table `data`
    budget: float | None
    delta: float | None
    adjacency: str | None
    claimed: bool
    unproven: tuple[str, ...]

    def settings(self, suggested: Mapping[str, object]) -> dict[str, dict[str, object]]:
        """The tables of client.toml: the owner's options, and the federation's terms where the owner names none."""
        delta = suggested.get("delta", 0.0) if self.delta is None else self.delta
        adjacency = self.adjacency or suggested.get("adjacency", "client")
        basis = "claimed" if self.claimed else "proven"
        return {
            "data": self.data,
            "budget": {"limit": self.budget, "delta": delta, "adjacency": adjacency, "basis": basis},
            "consents": {"federations": ["*"], "unproven": list(self.unproven), "claimed": self.claimed},
        }

    def check_terms(self, suggested: Mapping[str, object]) -> None:
        """Refuse a federation's terms in which a budget protects nobody, unless the owner has asked for them."""
        delta = suggested.get("delta", 0.0)
        if self.adjacency is None and suggested.get("adjacency") == "coordinate":
            raise InvalidInput(
                "this federation counts epsilon for one single number of a report, which says little about your "
                "records: say what your budget is about, --adjacency client, or --adjacency coordinate if you mean that"
            )
        if self.delta is None and not (isinstance(delta, int | float) and 0 <= delta <= LARGEST_DELTA):
            raise InvalidInput(
                f"this federation counts epsilon at delta {str(delta)[:40]}; above {LARGEST_DELTA:g}, everything may "
                "leave while the budget holds: give a --delta of your own, such as 1e-5"
            )

    def check_same(self, path: Path) -> None:
        """Refuse options that say something else than client.toml; what is left out agrees with everything."""
        from sordino.client.settings import Settings

        settings = Settings.read(path)
        data, budget, allowed = settings.data, settings.budget, set(settings.consents.unproven)
        hidden = self.adjacency and adjacency_named(self.adjacency)
        read: dict[str, tuple[object, object]] = {
            "--data": (self.data.get("source"), data.source),
            "--rows": (self.data.get("rows"), data.rows),
            "--label": (self.data.get("label"), None if data.label is None else str(data.label)),
            "--classes": (self.data.get("classes"), list(data.classes or ())),
            "--labels": (self.data.get("labels"), list(data.labels or ())),
            "--target": (self.data.get("target"), list(data.target or ())),
            "--budget": (self.budget, budget.limit),
            "--delta": (self.delta, budget.delta),
            "--adjacency": (hidden, adjacency_named(budget.adjacency)),
            "--claimed": (self.claimed or None, budget.basis == "claimed" and settings.consents.claimed),
            "--unproven": (sorted({*self.unproven} - allowed) or None, sorted(allowed)),
        }
        for option, (given, kept) in read.items():
            if given is not None and given != kept:
                raise InvalidInput(
                    f"{option} says {_word(given)}, and in {path} it is {_word(kept)}: leave {option} out, change that "
                    "file (the ledger writes a change of budget or consents down), or give another --folder"
                )


def _make_client(folder: Path, wishes: _Wishes, suggested: Mapping[str, object]) -> None:
    """Make the client's folder, with the federation's terms where the owner names none."""
    from sordino.client.client import Client
    from sordino.client.own_records import OwnRecords
    from sordino.client.settings import Settings

    if "source" not in wishes.data or wishes.budget is None:
        raise InvalidInput(
            f"{folder} is no client's folder yet: say what it holds and what may be spent, --data DATA --budget EPSILON"
        )
    wishes.check_terms(suggested)
    settings = Settings.of(wishes.settings(suggested), "the options")
    count = len(OwnRecords.read(settings.data, folder))  # refused before anything is made
    Client.create(folder, settings).close()
    typer.echo(
        f"Made a client in {folder}, with {count:,} records; its settings are in {folder / 'client.toml'}.", err=True
    )


def _word(value: object) -> str:
    """A setting's value for a person."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_json(client: Client, result: ParticipationResult) -> None:
    from sordino.privacy.ledger import terms

    standing = client.standing
    assert standing.budget is not None
    spent = {"spent": json_figure(standing.spent), "limit": standing.budget.limit, "terms": terms(standing.budget)}
    print_json({**asdict(result), **spent, "folder": str(client.folder)})
