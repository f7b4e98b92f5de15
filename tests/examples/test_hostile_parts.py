"""What a recipe from elsewhere, a careless part or a broken package must not be able to do."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

import sordino
from sordino.channels.secure_sum import Summed
from sordino.channels.shuffle import ShufflerChannel
from sordino.client.refusal import Refused
from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.splits import SplitSpec
from sordino.mechanisms import Box, TwoPoint
from sordino.methods.aggregation import AggregationSpec
from sordino.methods.robust import RobustSpec
from sordino.methods.selection import SelectionSpec
from sordino.parts import registry, toml
from sordino.parts.shipped import MODELS
from sordino.parts.tables import tag
from sordino.privacy.guarantee import Adjacency, Infinite
from sordino.recipe import EVERYTHING, CodeNotAllowed, Recipe, RecipeInvalid
from sordino.runs.federation import wire
from sordino.runs.journal import NAME
from sordino.runs.serving import serve
from tests.client import people
from tests.engine.test_resume import Stop
from tests.engine.tiny import recipe
from tests.survival.test_what_left import Scripted, reporting

HERE = "tests.examples.test_hostile_parts"
ODD = ["odd_code:", "odd_code: Net", "odd_code:Net.x", "odd_code:a:b", "odd_code:\n", " odd_code:Net", "odd-code:Net"]


# --- parts whose authors meant no harm --------------------------------------------------------------------------------


class Alternate(SelectionSpec):
    """All clients in odd rounds, two in even ones; it does not say that their number changes."""

    kind: str = tag("alternate", "all or two")

    def asked(self, clients):
        return clients

    def chosen(self, clients, seed, round):
        return list(range(clients if round % 2 else 2))


class Steady(Alternate):
    """The same, and says that it does not."""

    steady = True


class Overlap(SplitSpec):
    """Every record at every client."""

    kind: str = tag("overlap", "everything to everybody")
    clients: int = 3

    @property
    def number(self):
        return self.clients

    def parts(self, dataset, seed):
        return [np.arange(10)] * self.clients


class NeedsReports(AggregationSpec):
    """A mean that wants to see single reports."""

    uses = frozenset({"reports"})
    kind: str = tag("needs-reports", "sees single reports")


class OwnSum(AggregationSpec):
    """A rule that adds reports up in its own way."""

    kind: str = tag("own-sum", "its own sum")

    def tally(self, upload):
        return super().tally(upload)


class Patient(ShufflerChannel):
    """The shuffler service with another default."""

    kind: str = tag("patient", "a shuffler")


class Bare(TwoPoint):
    """The two points without their noise; whose guarantee it is not."""

    def randomize(self, values, randomness, *, tensor=0):
        return super().randomize(values, randomness, tensor=tensor)


class WrongBytes(TwoPoint):
    """A mechanism that sends a byte more than it takes."""

    name = "wrong-bytes"

    class Spec(TwoPoint.Spec):
        """Two points, and a byte too many."""

        name: str = tag("wrong-bytes", "a byte too many")

        def build(self, epsilon, vectors):
            made = super().build(epsilon, vectors)
            made.__class__ = WrongBytes
            return made

    def encode(self, output):
        return [report + b"x" for report in super().encode(output)]


class Unnamed(AggregationSpec):
    """A table that does not say its name."""


class Stepping(AggregationSpec):
    """A rule with a key of its own."""

    kind: str = tag("stepping", "has steps")
    steps: int = 3


class AllRows(RobustSpec):
    """A rule that hands back the reports as they are."""

    kind: str = tag("all-rows", "no rule")

    def rule(self, rows):
        return rows


class NoVector(AllRows):
    """A rule that hands back nothing."""

    kind: str = tag("no-vector", "nothing")

    def rule(self, rows):
        return None


class NoWeights(AggregationSpec):
    """A rule that weighs nobody."""

    kind: str = tag("no-weights", "nobody counts")

    def weights(self, upload):
        return []


class _Points(TwoPoint):
    """The two points, built as the class that holds the table."""

    class Spec(TwoPoint.Spec):
        """Two points."""

        def build(self, epsilon, vectors):
            made = super().build(epsilon, vectors)
            made.__class__ = getattr(sys.modules[HERE], self.name.partition(":")[2])
            return made


class Number(_Points):
    """A mechanism that names its epsilon as a number."""

    def guarantee(self, adjacency=Adjacency.CLIENT, *, values=1, client=0):
        return 1.0


class BareArray(_Points):
    """A mechanism that hands back the values alone."""

    guarantee = TwoPoint.guarantee

    def randomize(self, values, randomness, *, tensor=0):
        return np.zeros_like(values)


# --- what they cannot do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("key", ["model.name", "method.aggregation.kind", "data.source"])
def test_an_invitation_imports_nothing_whatever_its_names_look_like(name, key, tmp_path, monkeypatch):
    (tmp_path / "odd_code.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    tables = people.recipe().to_dict()
    table, _, field = key.rpartition(".")
    *path, last = table.split(".")
    inner = tables[path[0]] if path else tables
    inner[last] = {**inner[last], field: name}
    text = toml.document(tables, lambda path: False)
    with people.client(tmp_path / "a") as client, pytest.raises(Refused):
        client.offer(replace(people.terms(), recipe=text).invitation(0, people.KEY).encode())
    assert "odd_code" not in sys.modules


def test_an_address_that_is_none_is_never_imported():
    for name in ODD:
        with pytest.raises(InvalidInput):
            registry.load(name)
    assert "odd_code" not in sys.modules


def test_a_module_that_ends_the_program_is_an_error_like_others(tmp_path, monkeypatch):
    (tmp_path / "exits_at_once.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput):
        registry.load("exits_at_once:Part")


def test_a_data_source_of_ones_own_is_code_like_any_other():
    text = recipe().to_toml().replace('source = "digits"', 'source = "os:system"\narguments = { command = "true" }')
    with pytest.raises(CodeNotAllowed):
        Recipe.from_toml(text)
    assert Recipe.from_toml(text, EVERYTHING).own_code == ("os:system",)


def test_a_selection_is_held_to_what_it_declares():
    steady, honest = (
        recipe({"method.selection": {"kind": f"{HERE}:{name}"}}).method.selection for name in ("Steady", "Alternate")
    )
    assert not honest.steady and honest.choose(6, 1, 2) == [0, 1]
    assert steady.choose(6, 1, 1) == list(range(6))
    with pytest.raises(InvalidInput):
        steady.choose(6, 1, 2)


def test_hybrid_one_shares_noise_only_among_as_many_as_are_always_asked():
    changes = {
        "split": {"kind": "iid", "clients": 10},
        "method": {"name": "hybrid-one", "noise_multiplier": 1.0, "channel": {"kind": "summed", "threshold": 0.8}},
    }
    tables = {key: value for key, value in recipe().to_dict().items() if key != "training"}
    tables["training"] = {"optimizer": {"name": "sgd", "lr": 0.1}}
    whole = Recipe.from_dict(tables).with_(changes)
    with pytest.raises(RecipeInvalid, match=r"method\.selection"):
        whole.with_({"method.selection": {"kind": f"{HERE}:Alternate"}})


def test_a_split_that_deals_a_record_twice_is_refused():
    with pytest.raises(InvalidInput, match="several clients"):
        wire(recipe({"split": {"kind": f"{HERE}:Overlap"}}))


@pytest.mark.parametrize("rule", ["NeedsReports", "OwnSum"])
def test_a_rule_that_needs_single_reports_gets_no_sum(rule):
    changes = {"method.aggregation": {"kind": f"{HERE}:{rule}"}}
    assert recipe(changes).method.aggregation.kind.endswith(rule)
    with pytest.raises(RecipeInvalid, match=r"method\.aggregation\.kind"):
        recipe({**changes, "method.channel": {"kind": "summed"}})


def test_what_a_channel_does_goes_by_what_it_declares_and_not_by_its_name():
    assert Patient.posts and ShufflerChannel.posts and Summed.Spec.sums
    assert not (Summed.Spec.posts or ShufflerChannel.sums)


def test_other_noise_needs_a_guarantee_of_its_own():
    original, bare = (kind(1.0, Box(np.zeros(1), np.ones(1))) for kind in (TwoPoint, Bare))
    assert not isinstance(original.guarantee(values=1).loss, Infinite)
    assert isinstance(bare.guarantee(values=1).loss, Infinite)


def test_a_simulation_whose_every_report_is_refused_says_why():
    own = recipe({"method.mechanism": {"name": f"{HERE}:WrongBytes"}, "method.range": {"kind": "fixed", "radius": 0.1},
                  "clients.epsilon": 1.0})  # fmt: skip
    stopped = sordino.run(own.with_({"rounds.count": 2}), workers=1).result.stopped
    assert "did not count" in stopped and "bytes" in stopped


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_the_code_it_began_with(tmp_path, monkeypatch):
    code = tmp_path / "own_pick.py"
    code.write_text(
        textwrap.dedent("""
        from sordino.methods.selection import SelectAll
        from sordino.parts.tables import tag
        class Pick(SelectAll):
            kind: str = tag("pick", "all")
    """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    own, folder = recipe({"method.selection": {"kind": "own_pick:Pick"}}), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        sordino.run(own, folder=folder, workers=1, observer=Stop(1))
    before = code.read_text()
    code.write_text(before + "\nEDITED = True\n")
    with pytest.raises(InvalidInput, match="own_pick:Pick"):
        sordino.run(own, folder=folder, workers=1, resume=True)
    code.write_text(before)
    found = sordino.run(own, folder=folder, workers=1, resume=True)
    assert found.result.rounds == 3
    assert any("own_pick:Pick" in caveat for caveat in found.statement.caveats)


def test_a_journal_that_lost_its_rounds_is_not_begun_anew(tmp_path):
    own, folder = people.recipe({"rounds.count": 2}), tmp_path / "run"
    serve(own, Scripted(reporting), folder)
    (folder / "checkpoint" / NAME).unlink()
    (folder / "result.json").unlink()
    with pytest.raises(InvalidInput, match=NAME):
        serve(own, Scripted(reporting), folder, resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2


# --- packages ---------------------------------------------------------------------------------------------------------


def offering(site, *entries, **modules):
    info = site / "own-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sordino.parts]\n" + "\n".join(entries))
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text)


def carried_out(site, program):
    start = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    return subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(program)], capture_output=True, text=True, check=False
    )


def test_a_broken_package_is_left_out_and_breaks_nothing_else(tmp_path):
    offering(
        tmp_path, "aggregation.gone = nowhere_at_all:Rule", "aggregation.ends = ends:Rule",
        "aggregation.wrong = wrong:Rule", "model.logistic = ends:Net",
        ends="raise SystemExit(0)", wrong="from sordino.methods.selection import SelectAll as Rule",
    )  # fmt: skip
    found = carried_out(
        tmp_path,
        """
        import warnings
        from sordino.recipe import Recipe, RecipeInvalid
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            schema, keys = Recipe.json_schema(), list(Recipe.all_keys())
        print(sorted({str(warning.message).partition(": ")[2].partition(" ")[0] for warning in told}))
        assert Recipe.from_toml(Recipe.load("quickstart").to_toml()).own_code == ()
        for name in ("gone", "ends", "wrong"):
            try:
                Recipe.load("quickstart", [f"method.aggregation.kind={name}"])
            except RecipeInvalid as error:
                print(name)
    """,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["['ends:Rule', 'nowhere_at_all:Rule']", "gone", "ends", "wrong"]


def test_the_registry_knows_the_names_of_all_shipped_models():
    assert models.names() == MODELS


def test_two_packages_that_offer_one_name_are_told_apart(tmp_path):
    offering(tmp_path, "split.mine = a:Split", "split.mine = b:Split")
    found = carried_out(
        tmp_path,
        """
        from sordino.errors import InvalidInput
        from sordino.parts import registry, toml
        try:
            registry.tables("split")
        except InvalidInput as error:
            print("a:Split" in str(error) and "b:Split" in str(error))
    """,
    )
    assert found.stdout.strip() == "True", found.stderr


@pytest.mark.parametrize("module", ["optimizers", "layers", "replay", "stacked_model"])
def test_parts_may_import_learning_after_a_recipe_is_read(module):
    program = f"import sordino; sordino.Recipe.load('quickstart'); import sordino.learning.{module}"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_what_is_wrong_with_a_part_is_said(tmp_path, monkeypatch):
    (tmp_path / "half_done.py").write_text(
        textwrap.dedent("""
        from sordino.methods.selection import SelectionSpec
        from sordino.parts.tables import tag
        class Half(SelectionSpec):
            kind: str = tag("half", "half")
            def chosen(self, clients, seed, round): return [0]
    """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    for key, address in (
        ("method.selection.kind", "half_done:Half"),
        ("method.aggregation.kind", f"{HERE}:Alternate"),
        ("method.mechanism.name", f"{HERE}:OwnSum"),
        ("method.selection.kind", f"{HERE}:OwnSum"),
    ):
        with pytest.raises(RecipeInvalid) as caught:
            recipe().override([f"{key}={address}"])
        assert address.partition(":")[2].lower()[:3] in str(caught.value).lower()


def test_a_table_without_a_name_and_a_misspelt_key_are_said():
    with pytest.raises(RecipeInvalid, match=r"Unnamed.*kind: str = tag"):
        recipe({"method.aggregation": {"kind": f"{HERE}:Unnamed"}})
    own = recipe({"method.aggregation": {"kind": f"{HERE}:Stepping"}})
    with pytest.raises(RecipeInvalid, match=r"did you mean 'steps'\? keys here: kind, steps$"):
        own.override(["method.aggregation.stepz=4"])


def test_what_a_table_uses_is_a_set():
    with pytest.raises(TypeError, match=r"Text\.uses must be a frozenset"):
        type("Text", (AggregationSpec,), {"uses": "reports", "__module__": HERE})


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("AllRows", r"AllRows\.rule must return one vector"),
        ("NoVector", r"NoVector\.rule must return one vector"),
        ("NoWeights", r"NoWeights\.weights must return one number for each"),
    ],
)
def test_a_rule_that_returns_something_else_is_named(name, what):
    with pytest.raises(InvalidInput, match=what):
        sordino.run(recipe({"method.aggregation": {"kind": f"{HERE}:{name}"}}), workers=1)


@pytest.mark.parametrize(
    ("name", "what"),
    [("Number", r"Number\.guarantee must return a .*Guarantee"), ("BareArray", r"BareArray\.randomize must return")],
)
def test_a_mechanism_that_returns_something_else_is_named(name, what):
    own = recipe({"method.mechanism": {"name": f"{HERE}:{name}"}, "method.range": {"kind": "fixed", "radius": 0.1},
                  "clients.epsilon": 1.0})  # fmt: skip
    with pytest.raises(InvalidInput, match=what):
        sordino.run(own, workers=1)
