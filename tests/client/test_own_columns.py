"""Owners declare the columns of their tables as the federation does, or are refused before anything leaves."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sordino.cli import app
from sordino.cli.client import data_table
from sordino.client.client import Client
from sordino.client.invitation import CommonTerms, Invitation
from sordino.client.own_records import OwnRecords
from sordino.client.refusal import Reason
from sordino.client.settings import OwnData, Settings
from sordino.errors import InvalidInput
from sordino.learning.columns import digest_of
from sordino.recipe import Recipe, columns_in
from sordino.runs.federation import wire
from tests.client.people import KEY, NAME, body, refused
from tests.learning.test_columns import hospitals

PRIVATE: dict[str, Any] = {
    "clients": {"epsilon": 1.0},
    "method": {"name": "fedavg", "mechanism": {"name": "two-point"}, "range": {"kind": "fixed", "radius": 0.1}},
    "rounds": {"count": 1},
}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    found = Recipe.from_dict({**hospitals(tmp_path), **PRIVATE})
    (tmp_path / "wards.toml").write_text(found.to_toml())
    return found


def invited(recipe: Recipe) -> tuple[CommonTerms, Invitation]:
    terms = CommonTerms.of(recipe, NAME, wire(recipe).dataset, KEY.author)
    return terms, terms.invitation(0, KEY)


def initial(folder: Path, own: Path) -> Client:
    """The client that `sordino client init` makes, with the columns of the recipe's file."""
    options = {
        "--data": own / "wards.csv",
        "--label": "outcome",
        "--classes": "well,ill",
        "--columns": own / "wards.toml",
        "--budget": 1e6,
        "--federation": f"{NAME}={KEY.author.first.hex()}",
    }
    given = [str(word) for pair in options.items() for word in pair]
    done = CliRunner().invoke(app, ["client", "init", str(folder), *given])
    assert done.exit_code == 0, done.output
    return Client.open(folder)


def test_a_client_reads_its_table_as_the_federation_does(recipe: Recipe, tmp_path: Path) -> None:
    federation = wire(recipe)
    terms, invitation = invited(recipe)
    with initial(tmp_path / "client", tmp_path) as client:
        assert Settings.read(tmp_path / "client" / "client.toml") == client.settings
        assert list(client.settings.data.columns or ()) == ["note", "age", "smoker"]
        records = OwnRecords.read(client.settings.data, tmp_path / "client")
        assert len(records) == len(federation.dataset.train) + len(federation.dataset.test)
        for row, own in zip(federation.dataset.held_out, federation.dataset.test.x, strict=True):
            assert records.examples.x[row].tolist() == own.tolist()
        client.join(invitation.encode())
        method = federation.method
        plan = method.plan(method.init(), NAME)
        envelope = KEY.envelope("report", plan, terms.digest, range(3), plan.encode())
        assert len(body(client.reply("report", envelope).payload))


def test_an_invitation_has_the_digest_of_a_vocabulary_and_no_folder(recipe: Recipe, tmp_path: Path) -> None:
    terms, _ = invited(recipe)
    sent = Recipe.from_toml(terms.recipe)
    assert sent.data.columns is not None
    note = sent.data.columns["note"]
    assert (note.vocabulary, note.digest) == ("./words.txt", digest_of(["fever", "cough", "well"]))
    assert str(tmp_path) not in terms.recipe


@pytest.mark.parametrize(
    "change",
    [
        ("words.txt", "fever\ncough\nwell\n", "cough\nfever\nwell\n"),
        ("wards.toml", "high = 100.0", "high = 120.0"),
        ("wards.toml", "missing = 50.0", "missing = 0.0"),
        ("wards.toml", '["yes", "no"]', '["no", "yes"]'),
    ],
)
def test_other_rules_than_the_federations_are_refused(
    recipe: Recipe, tmp_path: Path, change: tuple[str, str, str]
) -> None:
    _, invitation = invited(recipe)
    name, before, after = change
    text = (tmp_path / name).read_text()
    assert before in text
    (tmp_path / name).write_text(text.replace(before, after))
    with initial(tmp_path / "client", tmp_path) as client, refused(Reason.NOT_IN_RECIPE) as caught:
        client.join(invitation.encode())
    assert "data.columns" in str(caught.value)


def test_other_columns_than_the_federations_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    rules = wire(recipe).dataset.rules
    records = OwnRecords.read(own(tmp_path, columns=dict(reversed(rules.items()))), tmp_path)
    with refused(Reason.NOT_IN_RECIPE):
        records.check_columns(NAME, rules)
    with refused(Reason.NOT_IN_RECIPE):
        records.check_columns(NAME, {"note": rules["note"]})
    records.check_columns(NAME, {})


def test_a_servers_path_is_never_read(recipe: Recipe, tmp_path: Path) -> None:
    """A rule of the federation that names a file without its digest agrees with nobody's."""
    records = OwnRecords.read(own(tmp_path, columns=recipe.data.columns), tmp_path)
    with refused(Reason.NOT_IN_RECIPE):
        records.check_columns(NAME, recipe.data.columns or {})


def own(folder: Path, **keys: Any) -> OwnData:
    return OwnData(**{"source": str(folder / "wards.csv"), "label": "outcome", "classes": ("well", "ill"), **keys})


@pytest.mark.parametrize("keys", [{"features": ("age",)}, {"source": "digits"}, {"label": 5}])
def test_columns_that_the_records_cannot_have_are_refused(recipe: Recipe, tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"data\.columns"):
        OwnRecords.read(own(tmp_path, columns=recipe.data.columns, **keys), tmp_path)


def test_a_file_without_columns_declares_none(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[data]\nsource = 'digits'\n")
    with pytest.raises(InvalidInput, match=r"data\.columns"):
        columns_in(tmp_path / "r.toml")


def test_an_owner_takes_plain_features_from_the_federations_recipe(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[data]\nsource = 'wards.csv'\nfeatures = ['age', 'weight']\n")
    (tmp_path / "own.csv").write_text("age,hospital,weight,outcome\n1,Bern,2,well\n3,Bern,4,ill\n")
    where = (str(tmp_path / "own.csv"), None, "outcome", "well,ill")
    settings = data_table(*where, columns=tmp_path / "r.toml")
    assert settings["features"] == ["age", "weight"]
    assert OwnRecords.read(own(tmp_path, source=settings["source"], features=("age", "weight")), tmp_path).shape == (2,)
