"""`sordino recipes`: the recipes that come with Sordino, and what is wrong with one of your own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.printing import AsJson, plain_errors, print_json, print_tables
from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.recipe import Key, Recipe

app = typer.Typer(
    invoke_without_command=True,
    help="Recipes: federations as data. Without a command, those that come with Sordino.",
)

RecipeName = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="A recipe that comes with Sordino, or a TOML file of your own.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, such as training.epochs=5; an empty value takes it away. May be repeated.",
    ),
]


@app.callback()
def recipes(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the recipes that come with Sordino."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise typer.BadParameter("put --json behind the command", param_hint="--json")
        return
    from sordino.recipe import Recipe, shipped

    with plain_errors():
        rows = [_row(Recipe.load(name)) for name in shipped()]
    if as_json:
        print_json(rows)
    else:
        print_tables(_recipes_table(rows), spare=("paper", "model", "data", "clients", "method, mechanism"))
        typer.echo("Change one with --set, or start from it: sordino recipes show NAME > mine.toml")


@app.command()
def show(name: RecipeName, settings: Settings = None, as_json: AsJson = False) -> None:
    """Print a recipe with every setting in force, defaults included, as TOML."""
    from sordino.recipe import Recipe

    with plain_errors():
        recipe = Recipe.load(name, settings or ())
    if as_json:
        print_json(recipe.to_dict())
    else:
        typer.echo(recipe.to_toml(), nl=False)


@app.command()
def check(name: RecipeName, settings: Settings = None, as_json: AsJson = False) -> None:
    """Say everything that is wrong with a recipe, before any work. The exit code is 1 if something is.

    The model is made and compared with the range's layers where the data set is known by name; your own data is not
    looked at.
    """
    from sordino.recipe import Recipe, RecipeInvalid

    with plain_errors():
        try:
            recipe = Recipe.load(name, settings or ())
            if problems := _model_problems(recipe):
                raise RecipeInvalid(problems, f"the recipe {recipe.name!r}")
        except RecipeInvalid as error:
            if as_json:
                print_json({"valid": False, "problems": list(error.problems)})
            else:
                typer.echo(str(error), err=True)
            raise typer.Exit(1) from None
    if as_json:
        print_json({"valid": True, "problems": [], "fingerprint": recipe.fingerprint})
    else:
        typer.echo(f"{recipe.name}: nothing is wrong. {_row(recipe)['clients']} clients, {_in_short(recipe)}.")


@app.command()
def schema(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it here, for an editor to find.")] = None,
) -> None:
    """Print the JSON Schema of recipes, by which editors complete and check them."""
    import json

    from sordino.recipe import Recipe

    if out is None:
        print_json(Recipe.json_schema())
        return
    with plain_errors():
        try:
            out.write_text(json.dumps(Recipe.json_schema(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidInput(
                f"{out}: cannot be written ({error.strerror}): give a file in a folder that can be written to"
            ) from None
    typer.echo(f"Wrote {out}")


@app.command()
def keys(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a table in Markdown, for documentation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every key a recipe can have, what it allows, its default and what it is for."""
    from sordino.recipe import Recipe

    found = Recipe.all_keys()
    if as_json:
        print_json([asdict(key) for key in found])
    elif markdown:
        typer.echo("\n".join(_markdown(found)))
    else:
        print_tables(_keys_table(found), spare=("default", "allowed"))


def _row(recipe: Recipe) -> dict[str, Any]:
    mechanism = getattr(recipe.method, "mechanism", None)
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "data": recipe.data.source,
        "clients": recipe.number_of_clients,
        "model": recipe.model.name,
        "method": recipe.method.name,
        "mechanism": None if mechanism is None else mechanism.name,
        "paper": recipe.paper or None,
    }


def _in_short(recipe: Recipe) -> str:
    row = _row(recipe)
    mechanism = f" with {row['mechanism']}" if row["mechanism"] else ""
    return f"{row['model']} on {row['data']}, {row['method']}{mechanism}, {recipe.rounds.count} rounds at most"


def _recipes_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Recipes", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("summary", min_width=35)
    table.add_column("clients", no_wrap=True, justify="right")
    table.add_column("data", min_width=13, overflow="fold")
    for column in ("model", "method, mechanism"):
        table.add_column(column, no_wrap=True)
    table.add_column("paper", min_width=25)
    for row in rows:
        how = ", ".join(part for part in (row["method"], row["mechanism"]) if part)
        cells = (row["name"], row["summary"], str(row["clients"]), row["data"], row["model"], how, row["paper"] or "")
        table.add_row(*map(Text, cells))
    return table


def _keys_table(found: list[Key]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Keys of a recipe", title_justify="left")
    table.add_column("key", no_wrap=True)
    table.add_column("allowed", min_width=20, overflow="fold")
    table.add_column("default", min_width=12, overflow="fold")
    table.add_column("what it is for", min_width=25, overflow="fold")
    for key in found:
        table.add_row(*map(Text, (key.key, key.allowed, key.default, _meaning(key))))
    return table


def _markdown(found: list[Key]) -> list[str]:
    lines = ["| key | allowed | default | what it is for |", "|---|---|---|---|"]
    for key in found:
        default = key.default if key.default in ("", "required") else f"`{key.default}`"
        lines.append(f"| `{key.key}` | {key.allowed} | {default} | {_meaning(key)} |")
    return lines


def _meaning(key: Key) -> str:
    """What a key is for, and in which forms of its table it is there at all."""
    return f"{key.description} [{', '.join(key.forms)}]" if key.forms else key.description


def _model_problems(recipe: Recipe) -> list[str]:
    """What the model itself says to its name, its options and the layers that the range names."""
    from sordino.learning.datasets import KNOWN

    try:
        from sordino.learning import models
    except ImportError:
        typer.echo("The model is not checked: that needs PyTorch (the extra 'learn').", err=True)
        return []
    listing = KNOWN.get(recipe.data.source)
    if listing is None:
        return []
    try:
        classes = len(listing.classes)
        shape = recipe.method.record_shape(recipe, listing.shape, classes)
        module = models.build(recipe.model.name, input_shape=shape, classes=classes, **recipe.model.options)
        models.released_buffers(module, recipe.model.buffers)
    except InvalidInput as error:
        return [f"model: {error}"]
    layers = [layer.name for layer in models.parameter_layout(module).layers]
    return list(_layer_problems(recipe, layers))


def _layer_problems(recipe: Recipe, layers: list[str]) -> list[str]:
    found = []
    range_ = getattr(recipe.method, "range", None)
    for name in ("radius", "centre"):
        given = getattr(range_, name, None)
        if isinstance(given, dict) and set(given) != set(layers):
            found.append(
                f"method.range.{name}: names the layers {', '.join(given)}; the model {recipe.model.name} has "
                f"{', '.join(layers)}: give each of them a number, or one number for all"
            )
    return found
