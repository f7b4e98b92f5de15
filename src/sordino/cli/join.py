"""`sordino join`: take part in a federation of web pages, with a client of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.folders import check_folder
from sordino.cli.printing import AsJson, json_figure, needing, plain_errors, print_json
from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from sordino.client.client import Client, Offer
    from sordino.web.native_participant import Participation


LARGEST_DELTA = 0.01  #: that a server may suggest; an owner may say more


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's address, or the link of an invitation.")],
    data: Annotated[
        str | None, typer.Option(help="A data set by name, an .npz or .csv file, or a folder of images.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="The largest epsilon that may ever be spent, above 0.")] = None,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The client's folder: made if it is not there, and used again.")
    ] = Path("sordino-client"),
    federation: Annotated[str, typer.Option(help="Which federation, where the server has several.")] = "",
    token: Annotated[str, typer.Option(help="The invitation's token, where it is not part of the link.")] = "",
    rows: Annotated[str | None, typer.Option(help='Which training examples, such as "0-598"; all if left out.')] = None,
    label: Annotated[str | None, typer.Option(help="The label's column of a .csv file.")] = None,
    classes: Annotated[str | None, typer.Option(help="The names of all classes of own data, with commas.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The delta at which epsilon is counted; the federation's if left out.")
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(help="What is hidden, such as client or record-add-remove; the federation's if left out."),
    ] = None,
    claimed: Annotated[bool, typer.Option("--claimed", help="Count claimed epsilons, which nothing proves.")] = False,
    unproven: Annotated[
        list[str] | None, typer.Option(metavar="WHAT", help="A kind of release that may leave without a proof.")
    ] = None,
    trusted: Annotated[
        Path | None, typer.Option(metavar="PEM", help="A server's certificate to trust; the system's if left out.")
    ] = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds for which a server that cannot be reached is tried again.")
    ] = 300.0,
    yes: Annotated[bool, typer.Option("--yes", help="Agree without being asked.")] = False,
    leave: Annotated[
        bool, typer.Option("--leave", help="Give your place back, so that another can have it. The ledger stays.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take part in a federation that `sordino serve` hosts, with your own records, budget and ledger.

    What would leave is shown first, and nothing is agreed to unless you say so. The client's folder is that of
    `sordino client`: look at it with `sordino client show FOLDER`. Stop with Ctrl-C: your place is kept, and the same
    command goes on.
    """
    with plain_errors():
        check_folder(folder, "--folder")
        with needing("learn,service", "a client of web federations"):
            import torch

            from sordino.client.client import Client
            from sordino.web.native_participant import Link, Participant, located
            from sordino.wire.tls_address import trusting

        torch.set_num_threads(1)  # records are trained on one by one: more threads only wait for each other
        trust = trusting(trusted)
        link, task = located(Link.parse(url, federation, token), trust)
        own: dict[str, Any] = {"source": data, "rows": rows, "label": label, "classes": classes}
        terms: dict[str, Any] = {"limit": budget, "delta": delta, "adjacency": adjacency}
        if leave and not (folder / "client.toml").exists():
            raise InvalidInput(f"{folder} is no client's folder, so nobody has a place to leave: name it, --folder")
        _prepared(folder, own, terms, claimed, unproven or [], task)
        with Client.open(folder) as client, _stoppable(link.name):
            agree = _agree(yes)
            say = _quiet if as_json else _say
            participant = Participant(client, link, task["federation"], agree, say, trust, patience)
            result = participant.leave() if leave else participant.take_part()
            if as_json:
                _print_json(client, result)
            elif leave:
                typer.echo(f"You have left {link.name}. What was recorded stays in {folder}.")
            else:
                _tell(result, link.server, link.name)


@contextmanager
def _stoppable(name: str) -> Iterator[None]:
    """Ctrl-C says what becomes of the place."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            f"\nStopped. Your place in {name} is kept: the same command goes on; with --leave it is given back.",
            err=True,
        )
        raise typer.Exit(130) from None


def _say(sentence: str) -> None:
    typer.echo(sentence)


def _quiet(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _agree(yes: bool) -> Any:
    def asked(offer: Offer) -> bool:
        typer.echo(offer.to_text(), err=True)
        try:
            return yes or typer.confirm(f"Join {offer.invitation.federation}?", err=True)
        except typer.Abort:  # Ctrl-C, or nobody who could answer
            return False

    return asked


def _prepared(
    folder: Path, own: dict[str, Any], terms: dict[str, Any], claimed: bool, unproven: list[str], task: dict[str, Any]
) -> None:
    """Make the client's folder, unless it is there; then its own settings count, and the options must agree."""
    from sordino.client.client import Client
    from sordino.client.own_records import OwnRecords
    from sordino.client.settings import Settings

    if (folder / "client.toml").exists():
        _same(folder, own, terms, claimed, unproven)
        return
    if own["source"] is None or terms["limit"] is None:
        raise InvalidInput(
            f"{folder} is no client's folder yet: say what it holds and what may be spent, --data DATA --budget EPSILON"
        )
    settings = Settings.of(_tables(own, terms, claimed, unproven, task), "the options")
    count = len(OwnRecords.read(settings.data, folder))  # refused before anything is made
    Client.create(folder, settings).close()
    typer.echo(
        f"Made a client in {folder}, with {count:,} records; its settings are in {folder / 'client.toml'}.", err=True
    )


def _tables(
    own: dict[str, Any], terms: dict[str, Any], claimed: bool, unproven: list[str], task: dict[str, Any]
) -> dict[str, Any]:
    """The settings: the owner's options, and the federation's terms where the owner names none."""
    from sordino.cli.client import _absolute

    suggested = _suggested(task["budget"] or {}, terms)
    data = {**own, "source": _absolute(own["source"])}
    if data["classes"] is not None:
        data["classes"] = _split(data["classes"])
    return {
        "data": {key: value for key, value in data.items() if value is not None},
        "budget": {
            "limit": terms["limit"],
            "delta": suggested.get("delta", 0.0) if terms["delta"] is None else terms["delta"],
            "adjacency": terms["adjacency"] or suggested.get("adjacency", "client"),
            "basis": "claimed" if claimed else "proven",
        },
        "consents": {"federations": ["*"], "unproven": unproven, "claimed": claimed},
    }


def _suggested(terms: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The federation's terms; refused where a budget in them protects nobody, and the owner has not asked for it."""
    delta, adjacency = terms.get("delta", 0.0), terms.get("adjacency", "client")
    if own["adjacency"] is None and adjacency == "coordinate":
        raise InvalidInput(
            "this federation counts epsilon for one single number of a report, which says little about your records: "
            "say what your budget is about, --adjacency client, or --adjacency coordinate if you mean that"
        )
    if own["delta"] is None and not (isinstance(delta, int | float) and 0 <= delta <= LARGEST_DELTA):
        raise InvalidInput(
            f"this federation counts epsilon at delta {str(delta)[:40]}; above {LARGEST_DELTA:g}, everything may leave "
            "while the budget holds: give a --delta of your own, such as 1e-5"
        )
    return terms


def _same(folder: Path, own: dict[str, Any], terms: dict[str, Any], claimed: bool, unproven: list[str]) -> None:
    """Refuse options that say something else than the folder does; what is left out agrees with everything."""
    from sordino.cli.client import _absolute
    from sordino.client.settings import Settings
    from sordino.privacy.terms import adjacency_named

    path = folder / "client.toml"
    settings = Settings.read(path)
    data, budget, allowed = settings.data, settings.budget, set(settings.consents.unproven)
    label = None if data.label is None else str(data.label)
    read: dict[str, tuple[Any, Any]] = {
        "--data": (own["source"] and _absolute(own["source"]), data.source),
        "--rows": (own["rows"], data.rows),
        "--label": (own["label"], label),
        "--classes": (own["classes"] and _split(own["classes"]), list(data.classes or ())),
        "--budget": (terms["limit"], budget.limit),
        "--delta": (terms["delta"], budget.delta),
        "--adjacency": (terms["adjacency"] and adjacency_named(terms["adjacency"]), adjacency_named(budget.adjacency)),
        "--claimed": (claimed or None, budget.basis == "claimed" and settings.consents.claimed),
        "--unproven": (sorted({*unproven} - allowed) or None, sorted(allowed)),
    }
    for option, (given, kept) in read.items():
        if given is not None and given != kept:
            raise InvalidInput(
                f"{option} says {_word(given)}, and in {path} it is {_word(kept)}: leave {option} out, change that "
                "file (the ledger writes a change of budget or consents down), or give another --folder"
            )


def _split(names: str) -> list[str]:
    return [each.strip() for each in names.split(",")]


def _word(value: Any) -> str:
    """A setting's value for a person."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tell(result: Participation, server: str, name: str) -> None:
    typer.echo(
        f"{name} is over: {result.ended}. You reported in {result.answered} rounds and declined {result.declined}."
    )
    typer.echo(f"The model and its report: {server}/api/federations/{name}/report.html")


def _print_json(client: Client, result: Participation) -> None:
    from sordino.privacy.ledger import terms

    standing = client.standing
    assert standing.budget is not None
    print_json(
        {
            "federation": result.federation,
            "client": result.client,
            "answered": result.answered,
            "declined": result.declined,
            "ended": result.ended,
            "spent": json_figure(standing.spent),
            "limit": standing.budget.limit,
            "terms": terms(standing.budget),
            "folder": str(client.folder),
        }
    )
