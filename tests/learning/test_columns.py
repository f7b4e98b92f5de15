"""Declared columns of a table: numbers, categories, text and gaps, each by a public rule."""

import csv
import hashlib
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from typer.testing import CliRunner

import sordino
from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.learning.columns import (
    CategoryColumn,
    ColumnSpec,
    NumberColumn,
    TokensColumn,
    WordsColumn,
    WrongCell,
    words_of,
)
from sordino.learning.examples import Normalisation
from sordino.learning.own_data import from_csv
from sordino.learning.tables import Features, Frame, Header
from sordino.parts.tables import tag
from sordino.privacy.guarantee import Adjacency
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs.federation import wire

# --- rules ------------------------------------------------------------------------------------------------------------


def test_a_number_is_kept_and_scaled_by_public_bounds() -> None:
    rule = NumberColumn(low=10, high=30, missing=20, flag=True)
    assert rule.encode(["10", "", "3e1", "NA"]).tolist() == [[10, 0], [20, 1], [30, 0], [20, 1]]
    assert (rule.parts(), rule.scale()) == (("", "missing"), ((10, 0), (20, 1)))
    plain = NumberColumn()
    assert (plain.encode(["-1.5"]).tolist(), plain.parts(), plain.scale()) == ([[-1.5]], ("",), ((0,), (1,)))


def test_a_category_has_one_place_for_each_value() -> None:
    rule = CategoryColumn(values=["yes", "no"], missing="no")
    assert rule.encode(["no", "yes", "nan"]).tolist() == [[0, 1], [1, 0], [0, 1]]
    other = CategoryColumn(values=["yes", "no"], other=True)
    assert other.encode(["maybe", "yes"]).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert other.parts() == ("yes", "no", "other")
    unknown = CategoryColumn(values=["yes", "no"], other=True, missing="not said")
    assert unknown.encode([""]).tolist() == [[0, 0, 1]]


def test_a_listed_value_is_no_gap() -> None:
    """NA stands for Namibia where it is in the list."""
    assert CategoryColumn(values=["DE", "NA"]).encode(["NA", "DE"]).tolist() == [[0, 1], [1, 0]]


def test_a_bag_of_words_counts_them() -> None:
    rule = WordsColumn(vocabulary=["fever", "cough"])
    assert rule.encode(["Fever, no COUGH; fever!", "nothing"]).tolist() == [[2, 1], [0, 0]]
    rest = WordsColumn(vocabulary=["fever", "cough"], other=True, missing="")
    assert rest.encode(["Fever, no COUGH; fever!", ""]).tolist() == [[2, 1, 1], [0, 0, 0]]


def test_tokens_are_the_numbers_of_words_from_2_on() -> None:
    rule = TokensColumn(vocabulary=["fever", "cough"], length=3, missing="")
    assert rule.encode(["cough and fever", "cough", "a b fever cough", ""]).tolist() == [
        [3, 1, 2],
        [3, 0, 0],
        [1, 1, 2],
        [0, 0, 0],
    ]


def test_words_are_the_same_however_letters_are_written() -> None:
    assert words_of("ÉTÉ e\u0301te\u0301 Don't x_1") == ["été", "été", "don", "t", "x_1"]
    assert words_of("STRASSE straße ΐ") == ["strasse", "strasse", "ΐ"]


@given(st.text())
def test_the_words_of_a_text_are_words(text: str) -> None:
    assert all(words_of(word) == [word] for word in words_of(text))


@pytest.mark.parametrize(
    ("rule", "cells", "row", "remedy"),
    [
        (NumberColumn(), ["1", ""], 1, "missing = 0"),
        (NumberColumn(), ["1", "2", "NaN"], 2, "release"),
        (NumberColumn(), ["low"], 0, "category"),
        (NumberColumn(missing=0), ["1", "inf"], 1, "float32"),
        (NumberColumn(), ["1e39"], 0, "float32"),
        (CategoryColumn(values=["a"]), ["a", ""], 1, 'missing = "a"'),
        (CategoryColumn(values=["a"]), ["a", "b"], 1, "other = true"),
        (CategoryColumn(values=["a"], other=True), ["b", "NA"], 1, "release"),
        (WordsColumn(vocabulary=["a"]), ["a", ""], 1, 'missing = ""'),
        (TokensColumn(vocabulary=["a"], length=1), ["NA"], 0, 'missing = ""'),
    ],
)
def test_wrong_cells_are_refused_with_a_remedy(rule: Any, cells: list[str], row: int, remedy: str) -> None:
    with pytest.raises(WrongCell) as caught:
        rule.encode(cells)
    assert caught.value.row == row
    assert remedy in str(caught.value)


@given(st.lists(st.text(max_size=20), max_size=20), st.integers(1, 9))
def test_tokens_say_which_words_of_the_vocabulary_a_text_has(texts: list[str], length: int) -> None:
    vocabulary = tuple(dict.fromkeys(word for text in texts[::2] for word in words_of(text)[::2])) or ("a",)
    rule = TokensColumn(vocabulary=vocabulary, length=length, missing="")
    for text, tokens in zip(texts, rule.encode([text.strip() for text in texts]).astype(int).tolist(), strict=True):
        known = [vocabulary[token - 2] if token > 1 else None for token in tokens if token]
        words = [] if text.strip() in ("NA", "NaN", "nan") else words_of(text.strip())[:length]
        assert known == [word if word in vocabulary else None for word in words]


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).map(str.strip).filter(bool)


@given(st.data())
def test_a_table_round_trips_through_a_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """What is written to a .csv file is what the rules say of each cell, in the order declared."""
    values = data.draw(st.lists(CELLS, min_size=1, max_size=4, unique=True))
    number = st.floats(width=32, allow_nan=False, allow_infinity=False)
    rows = data.draw(st.lists(st.tuples(st.none() | number, st.sampled_from(values), st.booleans()), min_size=1))
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(["unused", "category", "y", "n"])
    lines.writerows(["?", kind, "b" if own else "a", "" if n is None else repr(n)] for n, kind, own in rows)
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    rules = {"n": NumberColumn(missing=-1, flag=True), "category": CategoryColumn(values=values)}
    found = table(path, rules)
    assert found.train.x.tolist() == [
        [-1 if n is None else n, n is None, *(kind == value for value in values)] for n, kind, _ in rows
    ]
    assert found.train.y.tolist() == [int(own) for *_, own in rows]


def table(path: Path | Frame, rules: Any, **changes: Any) -> Any:
    chosen = {"test": None, "label": "y", "classes": ["a", "b"], "normalisation": Normalisation(), "rules": rules}
    return from_csv(path, **{**chosen, **changes})


def test_a_wrong_cell_of_a_table_is_named_by_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("n,y\n1,a\n\n,b\n")
    with pytest.raises(InvalidInput, match=r"t\.csv, line 4, column 'n': '' is a missing value.*missing = 0"):
        table(path, {"n": NumberColumn()})
    with pytest.raises(InvalidInput, match="there is no column 'm'"):
        table(path, {"m": NumberColumn()})
    with pytest.raises(InvalidInput, match="other than the label"):
        table(path, {"y": CategoryColumn(values=["a", "b"])})
    path.write_text("n,y\n1,a\nx,b\n")
    with pytest.raises(InvalidInput, match=r"line 3, column 'n': 'x'.*data\.columns"):
        table(path, {})


def test_a_table_of_a_header_alone_has_the_declared_width(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,c,y\n")
    found = table(tmp_path / "t.csv", {"c": CategoryColumn(values=["p", "q"]), "n": NumberColumn(low=0, high=4)})
    assert (found.shape, found.normalisation) == ((3,), Normalisation((0, 0, 0), (1, 1, 4)))
    assert found.feature_names == ("c=p", "c=q", "n")


class Odd(NumberColumn):
    """A rule of somebody's own that gives something else than it says."""

    def encode(self, cells: Any) -> Any:
        return super().encode(cells).astype(np.float64)


def test_an_own_rule_that_gives_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,y\n1,a\n")
    with pytest.raises(InvalidInput, match=r"data\.columns\.n: its rule must give float32"):
        table(tmp_path / "t.csv", {"n": Odd()})


# --- recipes ----------------------------------------------------------------------------------------------------------

NOTES = ("fever and cough", "Cough", "", "all is well", "walking", "fever fever")


def hospitals(folder: Path, rows: int = 90) -> dict[str, Any]:
    """A table with text, categories and gaps, and a recipe for it; those with a fever are ill."""
    draw = random.Random(3)
    with (folder / "wards.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "age", "smoker", "note", "hospital", "outcome"])
        for row in range(rows):
            note = draw.choice(NOTES)
            smoker, age = draw.choice(["yes", "no", "NA"]), draw.choice(["", str(draw.randrange(100))])
            lines.writerow([f"p{row}", age, smoker, note, "ABC"[row % 3], "ill" if "fever" in note else "well"])
    (folder / "words.txt").write_text("fever\ncough\nwell\n")
    return {
        "name": "wards",
        "data": {
            "source": str(folder / "wards.csv"),
            "label": "outcome",
            "classes": ["well", "ill"],
            "test": 0.3,
            "columns": {
                "note": {"kind": "words", "vocabulary": str(folder / "words.txt"), "missing": ""},
                "age": {"kind": "number", "low": 0, "high": 100, "missing": 50},
                "smoker": {"kind": "category", "values": ["yes", "no"], "missing": "no"},
            },
        },
        "split": {"kind": "column", "column": "hospital", "clients": ["A", "B", "C"]},
        "model": {"name": "logistic"},
        "method": {"name": "fedavg"},
        "training": {"epochs": 3, "batch_size": 5, "optimizer": {"name": "sgd", "lr": 0.5}},
        "rounds": {"count": 6},
    }


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe.from_dict(hospitals(tmp_path))


def test_a_recipe_with_columns_reads_back(recipe: Recipe) -> None:
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert recipe.with_({"seed": 2}).data.columns == recipe.data.columns
    changed = recipe.override(["data.columns.age.missing=40"])
    assert changed.data.columns is not None and changed.data.columns["age"].missing == 40
    assert list(changed.data.columns) == ["note", "age", "smoker"]


def test_the_order_of_columns_is_part_of_the_recipe(recipe: Recipe) -> None:
    assert recipe.data.columns is not None
    turned = dict(reversed(recipe.data.columns.items()))
    assert Recipe.from_dict(
        {**recipe.to_dict(), "data": {**recipe.to_dict()["data"], "columns": turned}}
    ).fingerprint != (recipe.fingerprint)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"columns": {}}, "data.columns:"),
        ({"columns": {"age": {"kind": "numbers"}}}, "data.columns.age.kind"),
        ({"columns": {"age": {"kind": "number", "low": 1}}}, "data.columns.age"),
        ({"columns": {"age": {"kind": "number", "low": 1, "high": 1}}}, "data.columns.age"),
        ({"columns": {"age": {"kind": "number", "flag": True}}}, "data.columns.age"),
        ({"columns": {"age": {"kind": "number", "values": ["a"]}}}, "data.columns.age.values"),
        ({"columns": {"c": {"kind": "category"}}}, "data.columns.c.values"),
        ({"columns": {"c": {"kind": "category", "values": ["a", "a"]}}}, "data.columns.c.values"),
        ({"columns": {"c": {"kind": "category", "values": ["a"], "missing": "b"}}}, "data.columns.c"),
        ({"columns": {"c": {"kind": "words", "vocabulary": ["Two words"]}}}, "data.columns.c.vocabulary"),
        ({"columns": {"c": {"kind": "words", "vocabulary": ["a", "b", "a"]}}}, "data.columns.c.vocabulary"),
        ({"columns": {"c": {"kind": "tokens", "vocabulary": ["a"]}}}, "data.columns.c.length"),
        ({"columns": {"outcome": {"kind": "category", "values": ["a"]}}}, "data.columns.outcome"),
        ({"columns": {"hospital": {"kind": "category", "values": ["a"]}}}, "split.column"),
        ({"mean": [0]}, "data.mean"),
        ({"features": ["age"]}, "data.features"),
        ({"label": 5}, "data.label"),
    ],
)
def test_wrong_declarations_are_refused_by_their_key(recipe: Recipe, changes: dict[str, Any], key: str) -> None:
    data = {**recipe.to_dict()["data"], **changes}
    with pytest.raises(RecipeInvalid) as caught:
        Recipe.from_dict({**recipe.to_dict(), "data": data})
    assert any(problem.startswith(key) for problem in caught.value.problems), caught.value.problems


def test_only_tables_have_columns(recipe: Recipe) -> None:
    with pytest.raises(RecipeInvalid, match=r"data\.columns"):
        recipe.with_({"data": {"source": "digits", "columns": {"age": {"kind": "number"}}}})


def test_paths_of_vocabularies_are_relative_to_the_recipe(tmp_path: Path) -> None:
    tables = hospitals(tmp_path)
    tables["data"]["columns"]["note"]["vocabulary"] = "words.txt"
    (tmp_path / "wards.toml").write_text(Recipe.from_dict(tables).to_toml())
    loaded = Recipe.load(tmp_path / "wards.toml")
    assert loaded.data.columns is not None
    assert loaded.data.columns["note"].vocabulary == str(tmp_path / "words.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b"", "no words"), (b"a\nB\n", '"B"'), (b"a\n\na\n", "twice"), (b"\xff", "UTF-8")],
)
def test_wrong_vocabulary_files_are_refused(recipe: Recipe, tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "words.txt").unlink()
    if content is not None:
        (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        wire(recipe)


# --- from a table to a model that reads tables ------------------------------------------------------------------------


def test_a_run_learns_from_text_categories_and_gaps_and_its_model_reads_the_same(
    recipe: Recipe, tmp_path: Path
) -> None:
    outcome = sordino.run(recipe, folder=tmp_path / "run")
    assert outcome.accuracy > 0.9
    (tmp_path / "words.txt").write_text("other\nwords\nhere\n")
    (tmp_path / "wards.csv").rename(tmp_path / "new.csv")
    model = sordino.load_model(tmp_path / "run")
    assert list(model.about.declared) == ["note", "age", "smoker"]
    assert model.about.declared["note"]["vocabulary"] == ["fever", "cough", "well"]
    assert model.about.columns == ("note=fever", "note=cough", "note=well", "age", "smoker=yes", "smoker=no")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "new.csv").read_text())))
    x = model.inputs(tmp_path / "new.csv")
    assert x[:, 3].tolist() == [float(row["age"] or 50) for row in rows]
    with torch.no_grad():
        right = [row["outcome"] for row in rows]
        assert np.mean([model.classes[k] == own for k, own in zip(model(x).argmax(1), right, strict=True)]) > 0.9
    found = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")])
    assert found.exit_code == 0
    assert [line.split(",")[0] for line in found.stdout.splitlines()[1:]] == [
        model.classes[k] for k in model(x).argmax(1)
    ]


def test_a_raw_table_that_breaks_a_rule_is_refused_by_the_model(recipe: Recipe, tmp_path: Path) -> None:
    sordino.run(recipe.with_({"rounds.count": 1}), folder=tmp_path / "run")
    model = sordino.load_model(tmp_path / "run")
    new = tmp_path / "new.csv"
    new.write_text("smoker,note,age\nperhaps,,3\n")
    with pytest.raises(InvalidInput, match=r"line 2, column 'smoker': 'perhaps'"):
        model.inputs(new)
    new.write_text("smoker,note\nyes,\n")
    with pytest.raises(InvalidInput, match="lacks age"):
        model.inputs(new)


def test_a_run_writes_down_which_words_it_is_about(recipe: Recipe, tmp_path: Path) -> None:
    sordino.run(recipe.with_({"rounds.count": 1}), folder=tmp_path / "run")
    saved = Recipe.load(tmp_path / "run" / "recipe.toml")
    assert saved.data.columns is not None
    assert saved.data.columns["note"].digest == hashlib.sha256(b"fever\ncough\nwell\n").hexdigest()
    sordino.run(recipe.with_({"rounds.count": 1}), folder=tmp_path / "run", resume=True)
    (tmp_path / "words.txt").write_text("fever\nwell\ncough\n")
    with pytest.raises(InvalidInput, match="agreed on"):
        wire(saved)
    for given_again in (saved, recipe.with_({"rounds.count": 1})):
        with pytest.raises(InvalidInput, match=r"agreed on|another recipe"):
            sordino.run(given_again, folder=tmp_path / "run", resume=True)


def test_a_damaged_description_of_columns_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    sordino.run(recipe.with_({"rounds.count": 1}), folder=tmp_path / "run")
    about = sordino.load_model(tmp_path / "run").about
    for wrong in ({"age": {"kind": "no-such"}}, {"age": {"low": 1}}, {"age": {"kind": "number", "low": 1}}):
        packed = json.dumps({**about.model_dump(mode="json"), "declared": wrong})
        with pytest.raises(InvalidInput, match="columns"):
            _ = type(about).from_json(packed).rules


class Year(ColumnSpec):
    """A kind of somebody's own: the year of a date, in decades since a public one."""

    kind: str = tag("year", "the year of a date")
    first: int = Field(description="the public year that is 0")

    def parts(self) -> tuple[str, ...]:
        return ("decades",)

    def encode(self, cells: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[(int(cell[:4]) - self.first) / 10] for cell in cells], np.float32)


class Standardised(Year):
    """Numbers less the mean of all that it is given: a rule that would let one record change every other."""

    kind: str = tag("standardised", "numbers less their mean")

    def encode(self, cells: Sequence[str]) -> NDArray[np.float32]:
        numbers = np.array([[float(cell)] for cell in cells], np.float32)
        return numbers - numbers.mean()


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=6))
def test_a_kind_of_ones_own_sees_one_cell_at_a_time(cells: list[int]) -> None:
    header = Header.of(Frame("memory", {}), ["a"], named=True)
    features = Features(header, (0,), {"a": Standardised(first=0)})
    assert features.values([(line, [str(cell)]) for line, cell in enumerate(cells)]).tolist() == [[0.0]] * len(cells)


YEAR = "tests.learning.test_columns:Year"


def test_a_kind_of_ones_own_is_used_by_its_address(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "wards.csv").write_text("born,hospital,outcome\n" + "1970-05-01,A,well\n1995-02-03,B,ill\n" * 20)
    split = {"kind": "column", "column": "hospital", "clients": ["A", "B"]}
    data = {
        **recipe.to_dict()["data"],
        "columns": {"born": {"kind": YEAR, "first": 1950}},
        "test": str(tmp_path / "wards.csv"),
    }
    own = Recipe.from_dict({**recipe.to_dict(), "data": data, "split": split, "rounds": {"count": 1}})
    assert own.own_code == (YEAR,)
    sordino.run(own, folder=tmp_path / "run")
    (tmp_path / "new.csv").write_text("born\n1985-01-01\n")
    model = sordino.load_model(tmp_path / "run")
    assert model.inputs(tmp_path / "new.csv").tolist() == [[3.5]]
    (tmp_path / "new.csv").write_text("born\nlong ago\n")
    with pytest.raises(InvalidInput, match=r"data\.columns\.born failed"):
        model.inputs(tmp_path / "new.csv")
    lone = (tmp_path / "run" / "model.safetensors").rename(tmp_path / "lone.safetensors")
    with pytest.raises(InvalidInput, match=r"allow=\["):
        sordino.load_model(lone)
    assert sordino.load_model(lone, allow=[YEAR]).about.columns == ("born=decades",)


# --- tokens in a recurrent network ------------------------------------------------------------------------------------


class Reader(nn.Module):
    """Tokens through an embedding and an LSTM."""

    def __init__(self, classes: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words + 2, 6)
        self.cell, self.head = nn.LSTM(6, 6, batch_first=True), nn.Linear(6, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.cell(self.embedding(tokens.long()))[0][:, -1])
        return scores


READER = {"model": {"name": "tests.learning.test_columns:Reader", "options": {"words": 3}}}
TOKENS = {"note": {"kind": "tokens", "vocabulary": ["fever", "cough", "well"], "length": 4, "missing": ""}}


def tokens(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    data = {**recipe.to_dict()["data"], "columns": TOKENS, "test": recipe.data.source}  # most of its notes are equal
    return Recipe.from_dict({**recipe.to_dict(), "data": data, **READER, **changes})


@pytest.mark.process
def test_tokens_train_an_own_lstm(recipe: Recipe, tmp_path: Path) -> None:
    adam = {"training": {"epochs": 4, "batch_size": 5, "optimizer": {"name": "adam", "lr": 0.05}}}
    outcome = sordino.run(tokens(recipe, adam), folder=tmp_path / "run")
    assert outcome.accuracy > 0.9
    model = sordino.load_model(tmp_path / "run")
    (tmp_path / "new.csv").write_text("note\nno fever but cough\n\n")
    assert model.inputs(tmp_path / "new.csv").tolist() == [[1, 2, 1, 3]]


@pytest.mark.process
def test_tokens_train_an_own_lstm_privately(recipe: Recipe) -> None:
    method = {"name": "silo-dp", "noise_multiplier": 1.0, "announced_size": 20}
    given_tokens = tokens(
        recipe, {"method": method, "rounds": {"count": 1}, "training": {"optimizer": {"name": "sgd", "lr": 0.1}}}
    ).with_({"model.per_record": True})
    outcome = sordino.run(given_tokens)
    assert np.isfinite(outcome.parameters).all()
    stated = [row for row in outcome.statement.rows if row.adjacency is Adjacency.RECORD_ADD_REMOVE]
    assert stated and all(row.proven == float("inf") for row in stated), "one record may end own code"


# --- thousands of users -----------------------------------------------------------------------------------------------


def test_a_column_of_three_thousand_users_is_dealt_at_once(tmp_path: Path) -> None:
    tables = hospitals(tmp_path, rows=1)
    users = [f"u{(row * 7919) % 3000:05d},{row % 90},yes,fever,{'ill' if row % 2 else 'well'}" for row in range(9000)]
    (tmp_path / "wards.csv").write_text("\n".join(["user,age,smoker,note,outcome", *users]) + "\n")
    split = {"kind": "column", "column": "user", "clients": 3000, "at_least": 0}
    found = wire(Recipe.from_dict({**tables, "split": split}))
    assert found.clients == 3000
    assert sum(map(len, found.parts)) == len(found.dataset.train)
    ages = found.dataset.train.x[found.parts[7], 3]
    assert {row for row in range(9000) if (row * 7919) % 3000 == 7 and row % 90 in ages}
