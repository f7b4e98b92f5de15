"""`sordino recipes`: the recipes that come with Sordino, and what is wrong with one of your own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.options import AsJson, Overrides, RecipeName
from sordino.cli.printing import Col, left, print_json, print_table
from sordino.errors import InvalidInput
from sordino.parts.shipped_recipes import ShippedRecipe, shipped_list

if TYPE_CHECKING:
    from sordino.recipe import Key, Recipe

app = typer.Typer(
    invoke_without_command=True,
    help="Recipes: federations as data. Without a command, those that come with Sordino.",
)


@app.callback()
def recipes(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the recipes that come with Sordino."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise typer.BadParameter("put --json behind the command", param_hint="--json")
        return
    found = shipped_list()
    if as_json:
        print_json([asdict(own) for own in found])
    else:
        columns = [Col("name", no_wrap=True), Col("summary", min_width=35), Col("clients", "right", no_wrap=True)]
        columns += [Col("data", min_width=13), Col("model", no_wrap=True), Col("method, mechanism", no_wrap=True)]
        rows = map(_row, found)
        spare = ("paper", "model", "data", "clients", "method, mechanism")
        print_table("Recipes", [*columns, *left("paper", min_width=25)], rows, spare)
        typer.echo("Change one with --set, or start from it: sordino recipes show NAME > mine.toml")


@app.command()
def show(name: RecipeName, settings: Overrides = None, as_json: AsJson = False) -> None:
    """Print a recipe with every setting in force, defaults included, as TOML."""
    from sordino.recipe import Recipe

    recipe = Recipe.load(name, settings or ())
    if as_json:
        print_json(recipe.to_dict())
    else:
        typer.echo(recipe.to_toml(), nl=False)


@app.command()
def check(name: RecipeName, settings: Overrides = None, as_json: AsJson = False) -> None:
    """Say everything that is wrong with a recipe, before any work. The exit code is 1 if something is.

    Model and method are made as a run makes them, and your own data is read; a data set known by name is not loaded.
    """
    from sordino.recipe import Recipe, RecipeInvalid

    try:
        recipe = Recipe.load(name, settings or ())
        if problems := _problems(recipe):
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
        how = " with ".join(filter(None, (recipe.method.name, _mechanism(recipe))))
        typer.echo(
            f"{recipe.name}: nothing is wrong. {recipe.number_of_clients} clients, {recipe.model.name} on "
            f"{recipe.data.source}, {how}, {recipe.rounds.count} rounds at most."
        )


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
        columns = [Col("key", no_wrap=True), Col("allowed", min_width=20), Col("default", min_width=12)]
        rows = ((key.key, key.allowed, key.default, _meaning(key)) for key in found)
        print_table("Keys of a recipe", [*columns, Col("what it is for", min_width=25)], rows, ("default", "allowed"))


def _mechanism(recipe: Recipe) -> str | None:
    mechanism = getattr(recipe.method, "mechanism", None)
    return None if mechanism is None else str(mechanism.name)


def _row(own: ShippedRecipe) -> tuple[str, ...]:
    how = ", ".join(filter(None, (own.method, own.mechanism)))
    return own.name, own.summary, str(own.clients), own.data, own.model, how, own.paper or ""


def _markdown(found: list[Key]) -> list[str]:
    lines = ["| key | allowed | default | what it is for |", "|---|---|---|---|"]
    for key in found:
        default = key.default if key.default in ("", "required") else f"`{key.default}`"
        lines.append(f"| `{key.key}` | {key.allowed} | {default} | {_meaning(key)} |")
    return lines


def _meaning(key: Key) -> str:
    """What a key is for, and in which forms of its table it is there at all."""
    return f"{key.description} [{', '.join(key.forms)}]" if key.forms else key.description


def _problems(recipe: Recipe) -> list[str]:
    """What a run would refuse; without PyTorch nobody can say."""
    try:
        from sordino.runs import recipe_check

        return recipe_check.problems(recipe)
    except ImportError:
        typer.echo("Model, method and data are not checked: that needs PyTorch (the extra 'learn').", err=True)
        return []
