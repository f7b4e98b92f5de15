"""Recipes: reading and writing them, what each client has, overrides, and where their files are."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sordino.errors import InvalidInput
from sordino.learning.splits import IidSplit
from sordino.mechanisms import TwoPoint
from sordino.mechanisms.spec import FixedRange
from sordino.methods.fedavg import FedAvg
from sordino.methods.selection import SelectFraction
from sordino.privacy.guarantee import MODEL_READER, SERVER, Adjacency, Budget, shuffled
from sordino.recipe import Data, Model, Recipe, RecipeInvalid, shipped

PLAIN: dict[str, Any] = {
    "name": "plain",
    "data": {"source": "digits"},
    "split": {"kind": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "method": {"name": "fedavg"},
}


def recipe(**tables: Any) -> Recipe:
    return Recipe.from_dict({**PLAIN, **tables})


def two_point(epsilon: Any, clients: int = 4, seed: int = 1) -> Recipe:
    method = {"name": "fedavg", "mechanism": {"name": "two-point"}, "range": {"kind": "fixed", "radius": 0.1}}
    return recipe(split={"kind": "iid", "clients": clients}, clients={"epsilon": epsilon}, method=method, seed=seed)


# --- what a recipe says -----------------------------------------------------------------------------------------------


def test_what_is_left_out_has_its_default():
    plain = recipe()
    assert (plain.seed, plain.rounds.count, plain.evaluation.every) == (1, 10, 1)
    assert (plain.training.epochs, plain.training.steps, plain.training.batch_size) == (1, None, 10)
    assert (plain.training.optimizer.name, plain.training.optimizer.lr) == ("sgd", 0.1)
    assert isinstance(plain.method, FedAvg.Spec)
    assert (plain.method.mechanism.name, plain.method.range, plain.method.selection.kind) == ("none", None, "all")
    assert plain.epsilons() is None
    assert plain.budgets() is None


def test_steps_take_the_place_of_epochs():
    assert recipe(training={"steps": 7}).training.epochs is None


def test_recipes_are_made_of_objects_as_well():
    method = FedAvg.Spec(mechanism=TwoPoint.Spec(), range=FixedRange(radius=0.1))
    made = Recipe(
        name="x", data=Data(source="digits"), split=IidSplit(clients=4), model=Model(name="logistic"),
        clients={"epsilon": 3.0}, method=method,
    )  # fmt: skip
    assert made == two_point(3.0).with_({"name": "x"})
    with pytest.raises(RecipeInvalid, match=r"clients\.epsilon: missing"):
        Recipe(name="x", data=made.data, split=made.split, model=made.model, method=method)


def test_recipes_cannot_be_changed_and_can_be_sent_to_other_processes():
    plain = recipe()
    with pytest.raises(ValidationError, match="frozen"):
        plain.seed = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(plain)) == plain


@pytest.mark.parametrize(
    ("split", "clients"),
    [
        ({"kind": "iid", "clients": 7}, 7),
        ({"kind": "sizes", "sizes": [3, 4, 5]}, 3),
        ({"kind": "dirichlet", "clients": 6, "beta": 0.5}, 6),
        ({"kind": "shards", "clients": 5, "labels_per_client": 2}, 5),
        ({"kind": "files", "files": ["a.txt", "b.npy"]}, 2),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_every_split_knows_its_number_of_clients(split, clients):
    assert recipe(split=split).number_of_clients == clients


@pytest.mark.parametrize(("p", "clients", "asked"), [(0.1, 100, 10), (0.001, 100, 1), (0.25, 10, 3), (1, 7, 7)])
def test_a_fraction_is_rounded_half_up_and_is_one_client_at_least(p, clients, asked):
    assert SelectFraction(p=p).asked(clients) == asked


def test_the_number_of_examples_is_known_of_public_sets_only():
    assert Data(source="digits").examples == 1500
    assert Data(source="digits", train_limit=100).examples == 100
    assert Data(source="digits", train_limit=9999).examples == 1500
    assert Data(source="wards.csv").examples is None


# --- one number per client --------------------------------------------------------------------------------------------


def test_one_epsilon_serves_all_and_a_list_serves_each():
    assert two_point(3).epsilons() == [3.0, 3.0, 3.0, 3.0]
    assert two_point([1, 2, 3.5, 4]).epsilons() == [1.0, 2.0, 3.5, 4.0]


def test_linear_epsilons_are_evenly_spaced_in_order():
    assert two_point({"linear": [2, 8]}).epsilons() == [2, 4, 6, 8]
    assert two_point({"linear": [8, 2]}).epsilons() == [8, 6, 4, 2]
    assert two_point({"linear": [2, 8]}, clients=1).epsilons() == [2]
    assert two_point({"linear": [0.1, 0.7]}, clients=3).epsilons() == [0.1, pytest.approx(0.4), 0.7]


def test_uniform_epsilons_are_the_same_everywhere():
    assert two_point({"uniform": [2, 8]}, clients=6).epsilons() == [4.62, 2.21, 4.69, 3.42, 4.88, 4.21]


def test_uniform_epsilons_spread_evenly_over_the_range():
    drawn = two_point({"uniform": [2, 8]}, clients=1500, seed=7).epsilons()
    assert drawn is not None
    assert all(2 <= e <= 8 and e == round(e, 2) for e in drawn)
    # Mean 5 and standard deviation sqrt(3): five standard errors are 0.2236. A false alarm has probability 6e-7.
    assert sum(drawn) / len(drawn) == pytest.approx(5, abs=5 * (3 / 1500) ** 0.5)
    # Each third holds 500 clients, give or take five times sqrt(1500 * 2/9) = 18.3.
    assert all(abs(n - 500) < 92 for n in Counter(int((e - 2) // 2.0000001) for e in drawn).values())


def test_a_client_keeps_its_uniform_epsilon_when_others_join():
    few, many = (two_point({"uniform": [2, 8]}, clients=n).epsilons() for n in (5, 50))
    assert few is not None
    assert many is not None
    assert many[:5] == few


def test_another_seed_gives_other_epsilons():
    assert two_point({"uniform": [2, 8]}, seed=2).epsilons() != two_point({"uniform": [2, 8]}, seed=1).epsilons()


def test_a_range_of_one_number_gives_that_number():
    assert two_point({"uniform": [1.234, 1.234]}).epsilons() == [1.234] * 4, "rounding never leaves the range"


@pytest.mark.parametrize(
    ("shares", "clients", "counts"),
    [
        ([0.5, 0.5], 4, [2, 2]),
        ([0.54, 0.43, 0.03], 100, [54, 43, 3]),
        ([0.54, 0.43, 0.03], 10, [6, 4, 0]),  # 5.4, 4.3, 0.3: the one left over goes to the remainder of 0.4
        ([0.5, 0.5], 5, [3, 2]),  # equal remainders: to the first
        ([0.1, 0.2, 0.7], 10, [1, 2, 7]),  # 0.1 + 0.2 + 0.7 is not 1 in floating point
    ],
)
def test_shares_are_exact_and_shuffled(shares, clients, counts):
    values = [1.0, 2.0, 3.0][: len(shares)]
    drawn = two_point({"values": values, "shares": shares}, clients=clients).epsilons()
    assert drawn is not None
    assert [drawn.count(v) for v in values] == counts
    if clients == 100:
        assert drawn != sorted(drawn), "who has which is drawn"
        assert drawn == two_point({"values": values, "shares": shares}, clients=clients).epsilons()


def test_budgets_are_what_ledgers_enforce():
    terms = {"delta": 1e-5, "basis": "claimed", "adjacency": "record (replace)", "adversary": "shuffled(100)"}
    budgets = recipe(clients={"budget": {"limit": [1, 2, 3, 4], **terms}}).budgets()
    assert budgets is not None
    assert budgets[2] == Budget(3.0, 1e-5, "claimed", Adjacency.RECORD_REPLACE, shuffled(100))
    plain = recipe(clients={"budget": {"limit": 2}}).budgets()
    assert plain == [Budget(2.0, 0.0, "proven", Adjacency.CLIENT, SERVER)] * 4
    reader = recipe(clients={"budget": {"limit": 2, "adversary": "Model reader"}}).budgets()
    assert reader is not None
    assert reader[0].adversary == MODEL_READER


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.name)
def test_every_adjacency_may_be_written_in_full_or_plainly(adjacency):
    budget = recipe(clients={"budget": {"limit": 2, "adjacency": str(adjacency)}})
    rule = budget.clients.budget
    assert rule is not None
    assert recipe(clients={"budget": {"limit": 2, "adjacency": rule.adjacency}}) == budget
    assert budget.budgets()[0].adjacency == adjacency  # type: ignore[index]


def test_limits_and_epsilons_are_drawn_apart():
    made = two_point({"uniform": [2, 8]}).with_({"clients.budget": {"limit": {"uniform": [2, 8]}}})
    assert [budget.limit for budget in made.budgets() or []] != made.epsilons()


# --- on disk ----------------------------------------------------------------------------------------------------------

names = st.text("abcXYZ019-_", min_size=1, max_size=12).filter(lambda name: name[0] not in "-_")
lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12)
positive = st.floats(1e-3, 1e3) | st.integers(1, 1000)
fraction = st.floats(1e-3, 0.999)
count = st.integers(1, 20)


@st.composite
def strengths(draw, clients):
    pair = st.lists(st.floats(0.01, 100), min_size=2, max_size=2).map(sorted)
    return draw(
        positive
        | st.lists(positive, min_size=clients, max_size=clients)
        | pair.map(lambda p: {"uniform": p})
        | pair.map(lambda p: {"linear": p})
        | st.just({"values": [1, 2.5], "shares": [0.25, 0.75]})
    )


@st.composite
def splits(draw):
    at_least = draw(st.integers(0, 1))
    clients = draw(count)
    return draw(
        st.sampled_from(
            [
                {"kind": "iid", "clients": clients, "at_least": at_least},
                {"kind": "sizes", "sizes": [1 + clients] * clients},
                {"kind": "dirichlet", "clients": clients, "beta": draw(positive)},
                {"kind": "shards", "clients": clients, "labels_per_client": 10},
                {"kind": "files", "files": [f"{k}.txt" for k in range(clients)], "at_least": at_least},
            ]
        )
    ), clients


@st.composite
def mechanisms(draw):
    """A mechanism's table, and whether it takes an epsilon."""
    delta, sigma = draw(fraction), draw(positive)
    return draw(
        st.sampled_from(
            [
                ({"name": "none"}, False),
                ({"name": "clip-only", "norm": draw(st.sampled_from(["box", "l1", "l2"]))}, False),
                ({"name": "two-point"}, True),
                ({"name": "laplace", "norm": "l1"}, True),
                ({"name": "laplace", "records": draw(count)}, True),
                ({"name": "gaussian", "norm": "l2", "delta": delta}, True),
                ({"name": "gaussian", "calibration": "sigma", "sigma": sigma}, False),
                ({"name": "sign"}, True),
                ({"name": "sign", "calibration": "eq7", "delta": delta}, True),
                ({"name": "sign", "calibration": "sigma", "sigma": sigma}, False),
                ({"name": "exponential", "precision": draw(st.integers(0, 18))}, True),
                ({"name": "piecewise"}, True),
                ({"name": "privunit"}, True),
            ]
        )
    )


@st.composite
def methods(draw, clients):
    """A method's table, and whether clients have an epsilon."""
    selection = draw(
        st.sampled_from(
            [{"kind": "all"}, {"kind": "count", "k": clients}, {"kind": "fraction", "p": draw(fraction)},
             {"kind": "probability", "p": draw(fraction)}]
        )
    )  # fmt: skip
    shared = {"selection": selection, "server_lr": draw(positive)}
    if draw(st.booleans()):
        noise = draw(st.sampled_from([{"noise_multiplier": 1.1}, {"target": {"epsilon": 5, "delta": 1e-5}}]))
        return {"name": "silo-dp", "steps": draw(count), **shared, **noise}, False
    mechanism, takes = draw(mechanisms())
    method = {
        "name": "fedavg",
        "upload": draw(st.sampled_from(["update", "weights"])),
        "mechanism": mechanism,
        **shared,
    }
    if mechanism["name"] != "none":
        layered = mechanism["name"] in ("two-point", "piecewise")
        radius = draw(st.dictionaries(lines.filter(bool), positive, min_size=1) if layered else positive)
        method["range"] = {"kind": "fixed", "radius": radius}
    if mechanism["name"] == "sign":
        method["aggregation"] = {"kind": "sign", "step": draw(positive)}
    return method, takes


@st.composite
def recipes(draw):
    """A valid recipe's table, of which anything may be left out that can be."""
    split, clients = draw(splits())
    method, takes = draw(methods(clients))
    spending: dict[str, Any] = {"epsilon": draw(strengths(clients))} if takes else {}
    if draw(st.booleans()):
        spending["budget"] = {"limit": draw(strengths(clients)), "delta": draw(fraction), "adjacency": "label"}
    optimizer = draw(st.sampled_from([{"name": n, "lr": draw(positive)} for n in ("sgd", "adam", "rmsprop")]))
    training = {"optimizer": optimizer}
    if method["name"] == "fedavg":
        training |= {draw(st.sampled_from(["epochs", "steps"])): draw(count), "batch_size": draw(st.integers(0, 50))}
    values = st.recursive(
        st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )
    return {
        "name": draw(names),
        "summary": draw(lines),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "data": {"source": "digits", "validation": draw(fraction), "train_limit": draw(st.sampled_from([0, 1000]))},
        "split": split,
        "model": {"name": "logistic", "options": draw(st.dictionaries(st.text(), values, max_size=3))},
        "training": training,
        "clients": spending,
        "method": method,
        "rounds": {"count": draw(count), "patience": draw(st.integers(0, 3)), "deadline": draw(positive)},
    }


@pytest.mark.process
@settings(max_examples=300, deadline=None)
@given(recipes())
def test_what_is_written_reads_back_as_the_same_recipe(table):
    made = Recipe.from_dict(table)
    again = Recipe.from_toml(made.to_toml())
    assert again == made
    assert again.to_toml() == made.to_toml()
    assert again.fingerprint == made.fingerprint
    assert again.epsilons() == made.epsilons()
    assert again.budgets() == made.budgets()


@pytest.mark.process
@settings(max_examples=100, deadline=None)
@given(recipes())
def test_the_settings_are_the_recipe_flat(table):
    made = Recipe.from_dict(table)
    flat = made.settings()
    assert flat["name"] == made.name
    assert flat["method.name"] == made.method.name
    assert made.with_({key: value for key, value in flat.items() if key != "name"}).fingerprint == made.fingerprint


def test_a_complete_recipe_says_every_default_and_leaves_out_what_does_not_apply():
    written = recipe().to_toml()
    assert 'stop_on = "validation"' in written
    assert "epochs = 1" in written
    assert "steps" not in written
    silo = {"name": "silo-dp", "noise_multiplier": 1.0}
    assert "batch_size" not in recipe(method=silo).to_toml()


def test_the_fingerprint_is_of_what_is_meant_not_of_how_it_is_written():
    spelt = "name='plain'\nseed=1\ndata={source='digits'}\n[method]\nname='fedavg'\nserver_lr=1\n[split]\nclients=4\n"
    spelt += "kind='iid'\n[model]\nname='logistic'"
    assert Recipe.from_toml(spelt).fingerprint == recipe().fingerprint
    assert recipe(seed=2).fingerprint != recipe().fingerprint
    assert len(recipe().fingerprint) == 64


@pytest.mark.parametrize("name", list(shipped()))
def test_shipped_recipes_are_valid_and_say_what_they_are(name):
    made = Recipe.load(name)
    assert made.name == name
    assert made.summary
    assert Recipe.from_toml(made.to_toml()) == made


def test_no_shipped_recipe_computes_by_own_code():
    """Nothing would be proven of single records."""
    assert not [name for name in shipped() if Recipe.load(name).computes_by_own_code]


def test_the_recipes_of_the_first_hour_are_shipped():
    assert {"quickstart", "two-point-digits", "fedavg-digits", "fedavg-mnist"} <= set(shipped())
    assert Recipe.load("two-point-digits").epsilons() == pytest.approx([2 + 6 * k / 19 for k in range(20)])
    assert Recipe.load("quickstart").method.name == "silo-dp"
    assert (Recipe.load("fedavg-mnist").number_of_clients, Recipe.load("fedavg-mnist").model.name) == (100, "cnn-mnist")


def test_paths_in_a_file_are_relative_to_the_file(tmp_path):
    own = """name = "own"
        data = {source = "wards.csv", test = "rest.csv", label = "y", classes = ["a", "b"], mean = [0], std = [1]}
        split = {kind = "files", files = ["north.txt", "/tmp/south.txt"]}
        model = {name = "logistic"}
        method = {name = "fedavg"}"""
    (tmp_path / "own.toml").write_text(own)
    made = Recipe.load(tmp_path / "own.toml", ["rounds.count=2"])
    assert (made.data.source, made.data.test) == (str(tmp_path / "wards.csv"), str(tmp_path / "rest.csv"))
    assert made.split.files == (str(tmp_path / "north.txt"), "/tmp/south.txt")  # type: ignore[union-attr]
    assert Recipe.load(tmp_path / "own.toml", ["data.source=x.csv"]).data.source == "x.csv"
    assert Recipe.from_toml(own).data.source == "wards.csv"


def test_a_held_out_fraction_and_known_names_are_no_paths(tmp_path):
    (tmp_path / "r.toml").write_text(recipe().to_toml().replace("digits", "hospital.data:load"))
    assert Recipe.load(str(tmp_path / "r.toml")).data.source == "hospital.data:load"
    (tmp_path / "r.toml").write_text(recipe().to_toml())
    assert Recipe.load(str(tmp_path / "r.toml")).data.source == "digits"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("quickstrat", "did you mean 'quickstart'?"),
        ("nowhere/mine.toml", "nowhere/mine.toml: there is no such file"),
        ("mine.toml", "mine.toml: there is no such file"),
    ],
)
def test_recipes_that_are_not_there_are_named(given, sentence):
    with pytest.raises(InvalidInput, match=sentence.replace("?", r"\?")):
        Recipe.load(given)


def test_a_recipe_of_ones_own_named_without_its_ending_is_pointed_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wards.toml").touch()
    with pytest.raises(InvalidInput, match=r"'wards\.toml'"):
        Recipe.load("wards")


def test_files_that_are_not_text_are_refused(tmp_path):
    (tmp_path / "r.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(InvalidInput, match="UTF-8"):
        Recipe.load(tmp_path / "r.toml")
    with pytest.raises(InvalidInput, match="no such file"):
        Recipe.load(tmp_path)


# --- the grammar itself -----------------------------------------------------------------------------------------------


def test_the_schema_describes_everything_a_recipe_can_say():
    schema = Recipe.json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["required"]) == {"name", "data", "split", "model", "method"}
    for table in (schema, *schema["$defs"].values()):
        assert table["description"]
        assert table["additionalProperties"] is False
        for name, field in table["properties"].items():
            assert field.get("description"), name


def schema_keys(schema: dict[str, Any], table: dict[str, Any], path: str = "") -> set[str]:
    """The dotted keys of a JSON Schema; a value that may be a table or something else is one key."""
    found: set[str] = set()
    for name, field in table["properties"].items():
        forms = [form for form in alternatives(field) if form != {"type": "null"}]
        if all("$ref" in form for form in forms):
            tables = [schema["$defs"][form["$ref"].rpartition("/")[2]] for form in forms]
            found |= {key for each in tables for key in schema_keys(schema, each, f"{path}{name}.")}
        else:
            found.add(path + name)
            named = [inner for form in forms if isinstance(inner := form.get("additionalProperties"), dict)]
            inner = [form["$ref"] for each in named for form in alternatives(each) if "$ref" in form]
            for each in inner:
                found |= schema_keys(schema, schema["$defs"][each.rpartition("/")[2]], f"{path}{name}.NAME.")
    return found


def alternatives(field: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [*field.get("anyOf", ()), *field.get("oneOf", ())]
    return [leaf for each in inner for leaf in alternatives(each)] if inner else [field]


def test_every_key_of_the_schema_is_listed_and_explained():
    schema = Recipe.json_schema()
    assert {key.key for key in Recipe.all_keys()} == schema_keys(schema, schema)
    assert all(key.allowed and key.description for key in Recipe.all_keys())


@pytest.mark.process
def test_importing_recipes_loads_neither_torch_nor_scikit_learn():
    program = (
        "import sys, sordino\n"
        "assert 'pydantic' not in sys.modules\n"
        "from sordino.recipe import Recipe, shipped\n"
        "[Recipe.load(name).epsilons() for name in shipped()]\n"
        "print(sorted({'torch', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"


# --- overrides --------------------------------------------------------------------------------------------------------


def overridden(*settings: str, name: str = "two-point-digits") -> Recipe:
    return Recipe.load(name, settings)


def test_values_are_read_as_toml_and_bare_words_as_text():
    made = overridden(
        "training.epochs=5", "training.optimizer.name=adam", "training.shuffle=false", "seed = 7", "summary=a b",
        'model.name="mlp"', "model.options.hidden=[64, 32]", "method.range.radius={fc = 0.5}",
        'method.range.centre."a.b"=1e-3', "clients.budget.limit=3", "clients.budget.adjacency=record-replace",
    )  # fmt: skip
    assert (made.training.epochs, made.seed, made.training.shuffle, made.summary) == (5, 7, False, "a b")
    assert (made.training.optimizer.name, made.training.optimizer.lr) == ("adam", 1.0)
    assert made.model == Model(name="mlp", options={"hidden": [64, 32]})
    assert isinstance(made.method, FedAvg.Spec)
    assert made.method.range == FixedRange(radius={"fc": 0.5}, centre={"a.b": 0.001})
    assert (made.budgets() or [])[0].adjacency == Adjacency.RECORD_REPLACE


def test_the_last_of_two_values_holds():
    assert overridden("seed=2", "seed=3").seed == 3


def test_an_empty_value_takes_a_key_away():
    made = overridden("method.mechanism.name=none", "clients.epsilon=", "method.range=", "training.epochs=")
    assert made.epsilons() is None
    assert made.training.epochs == 1
    assert overridden("clients.budget=").budgets() is None
    assert overridden("clients.budget.limit=").budgets() is None, "what is not there need not be taken away"


def test_a_distribution_replaces_another():
    assert overridden("clients.epsilon=3").epsilons() == [3.0] * 20
    assert overridden("clients.epsilon.uniform=[2, 8]").to_dict()["clients"]["epsilon"] == {"uniform": [2.0, 8.0]}
    made = overridden("clients.epsilon.values=[1, 4]", "clients.epsilon.shares=[0.5, 0.5]")
    assert sorted(made.epsilons() or []) == [1.0] * 10 + [4.0] * 10


def test_another_form_keeps_the_keys_that_both_have_and_drops_defaults_of_the_old_one():
    made = overridden("split.beta=0.5", "split.kind=dirichlet")  # in either order
    assert made.to_dict()["split"] == {"kind": "dirichlet", "clients": 20, "beta": 0.5, "at_least": 1}
    complete = Recipe.from_toml(overridden("method.mechanism.name=laplace").to_toml())
    assert complete.override(["method.mechanism.name=two-point"]) == overridden()
    assert complete.override(["split.kind=shards", "split.labels_per_client=2"]).number_of_clients == 20


def test_what_belonged_to_the_old_form_and_was_meant_is_not_dropped_in_silence():
    with pytest.raises(RecipeInvalid) as caught:
        overridden("split.kind=sizes")
    assert caught.value.problems == (
        'split.clients: got 20, which belongs to iid, not to sizes: take it away with "split.clients=", or give what '
        "the new kind has instead",
        "split.sizes: missing; number of examples of each client (allowed: a list of whole numbers >= 0)",
    )
    assert overridden("split.kind=sizes", "split.clients=", "split.sizes=[9, 9]", "clients.epsilon=1").epsilons() == [
        1,
        1,
    ]


def test_a_table_given_whole_replaces_the_old_one():
    assert overridden("split={kind='sizes', sizes=[5, 6]}", "clients.epsilon=1").number_of_clients == 2


def test_a_part_that_is_not_there_yet_begins_with_its_default_form():
    with pytest.raises(RecipeInvalid, match=r"method\.selection\.k.*count"):
        overridden("method.selection.k=5")
    made = overridden("method.selection.k=5", "method.selection.kind=count")
    assert made.method.selection.asked(20) == 5
    optimizer = recipe().override(["training.optimizer.momentum=0.9"]).to_dict()["training"]["optimizer"]
    assert (optimizer["name"], optimizer["lr"], optimizer["momentum"]) == ("sgd", 0.1, 0.9)


def test_of_settings_that_contradict_each_other_the_last_counts():
    options = "model.options={ hidden = [8] }"
    assert overridden("training.epochs=2", "training.epochs=3").training.epochs == 3
    between = overridden("model.name=mlp", "model.options.dropout=0.1", options, "model.options.dropout=0.2")
    assert between.model.options == {"hidden": [8], "dropout": 0.2}
    assert overridden("model.name=mlp", "model.options.dropout=0.1", options).model.options == {"hidden": [8]}


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("training.epoch=5", "training.epoch: unknown key; did you mean 'epochs'? keys here: steps, epochs"),
        ("epochs=5", "epochs: unknown key; did you mean 'training.epochs'? keys here: name"),
        ("method.mechanism.norms=l1", "method.mechanism.norms: unknown key; did you mean 'norm'?"),
        ("traning.epochs=5", "traning: unknown key; did you mean 'training'?"),
        ("seed.x=1", "seed.x: seed is no table and has no keys of its own"),
        ("training.epochs", "'training.epochs' is not key=value, such as training.epochs=5"),
        ("=5", "'=5' is not key=value"),
        ("a..b=5", "'a..b=5' is not key=value"),
        ("split.sizes=[1, 2", "split.sizes: '[1, 2' cannot be read as a TOML value"),
        ("training.epochs=five", 'training.epochs: got "five"; allowed: a whole number >= 1'),
        ("clients.epsilon.unifrom=[1,2]", "clients.epsilon.unifrom: unknown key; did you mean 'uniform'?"),
        ("method.range.radius.fc=thick", 'method.range.radius.fc: got "thick"; allowed: a number > 0'),
    ],
)
def test_overrides_that_cannot_be_meant_are_refused_with_the_nearest_name(setting, problem):
    with pytest.raises(RecipeInvalid) as caught:
        overridden(setting)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(problem)
    assert "the recipe 'two-point-digits' has 1 problem" in str(caught.value)


def test_problems_of_overrides_and_of_the_recipe_come_together():
    with pytest.raises(RecipeInvalid) as caught:
        overridden("epoch=1", "training.epochs=0", "rounds.quorum=21")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "epoch", "training.epochs", "rounds.quorum",
    ]  # fmt: skip


def test_with_takes_python_values_and_gives_another_recipe():
    before = recipe()
    after = before.with_({"training.epochs": 5, "split": {"kind": "sizes", "sizes": [1, 2]}})
    assert (after.training.epochs, after.number_of_clients) == (5, 2)
    assert (before.training.epochs, before.number_of_clients) == (1, 4)
    budget = {"limit": 3.0}
    assert before.with_({"clients.budget": budget, "clients.budget.delta": 0.1}).budgets() is not None
    assert budget == {"limit": 3.0}, "what was handed over stays as it was"
    with pytest.raises(RecipeInvalid, match="is no key"):
        before.with_({"a b": 1})


def test_what_was_not_said_is_not_held_against_a_switch():
    """A recipe made with defaults can become one of silo-dp: nobody asked for epochs."""
    made = recipe().override(["method.name=silo-dp", "method.noise_multiplier=1.1"])
    assert made.method.name == "silo-dp"


def test_what_a_method_sets_by_default_is_not_held_against_another_channel():
    """Secure sums of a private head have a threshold of their own, which nobody has said."""
    made = Recipe.from_dict(
        {
            "name": "head",
            "data": {"source": "digits"},
            "split": {"kind": "iid", "clients": 20},
            "model": {"name": "logistic"},
            "clients": {"epsilon": 1.0},
            "method": {"name": "private-head", "extractor": {"kind": "plain"}},
            "rounds": {"count": 3},
        }
    )
    assert made.method.channel.kind == "summed"
    assert made.override(["method.channel.kind=direct"]).method.channel.kind == "direct"


def test_the_summary_of_a_shipped_recipe_says_when_its_settings_were_changed():
    shipped_one = Recipe.load("quickstart")
    assert shipped_one.described == shipped_one.summary
    assert Recipe.load("quickstart", ["seed=5"]).described == shipped_one.summary
    changed = Recipe.load("quickstart", ['method={ name = "fedavg" }', "clients.budget=", "rounds.count=2"]).described
    assert changed == f"{shipped_one.summary} (as shipped; changed here: clients, method, rounds.count, training)"
    assert Recipe.load("quickstart", ["rounds.count=2"]).described.endswith("changed here: rounds.count)")
    own = shipped_one.with_({"summary": "mine", "rounds.count": 2})
    assert own.described == "mine"
