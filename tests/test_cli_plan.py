import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sordino.cli import app
from sordino.cli.plan import NAMES
from sordino.mechanisms import TwoPoint, mechanisms
from sordino.mechanisms.tuning import Ranges
from sordino.privacy.guarantee import Budget, Destination, Release
from sordino.privacy.ledger import Standing, admit
from sordino.report.expectations import LEVELS

PAGE = (Path(__file__).parent.parent / "docs" / "planning.md").read_text()
TWO_POINT = ("--mechanism", "two-point", "--values", "650", "--rounds", "10", "--epsilon", "50")
HEAD = (
    "--mechanism", "private-head", "--maps", "81", "--records", "600", "--clients", "100", "--rounds", "51",
    "--epsilon", "1",
)  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


def planned(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_planned_parameter_is_admitted_by_the_ledger_for_exactly_that_many_rounds():
    (row,) = planned(*TWO_POINT, "--delta", "1e-5")
    guarantee = TwoPoint(row["parameter"]["value"]).guarantee(values=650)
    standing = Standing.opening(Budget(50.0, 1e-5))
    for number in range(10):
        standing = admit(standing, Release(str(number), "data", "update", (guarantee,)), Destination("f"))
    assert standing.spent == pytest.approx(row["all_rounds"]["ledger"])
    assert row["all_rounds"]["statement"] < row["all_rounds"]["ledger"] <= 50


def test_every_epsilon_stands_beside_its_terms():
    result = run(*TWO_POINT)
    assert result.exit_code == 0
    for word in (
        "10 rounds of 650 values within epsilon 50 (proven, against server, adjacency client, delta 0)",
        "epsilon per value 0.0076923",
        "two-point: proven by bits with probabilities in",
        "Above epsilon 20 there is no meaningful protection",
    ):
        assert word in result.stdout
    (row,) = planned(*TWO_POINT)
    assert {"epsilon", "delta", "adjacency", "adversary", "basis"} == set(row["round"])


def test_clients_and_an_update_norm_give_the_noise_to_expect():
    (row,) = planned(*TWO_POINT, "--radius", "0.1", "--clients", "20", "--update-norm", "0.4")
    k = 1 / 0.00384613  # (e^eps + 1)/(e^eps - 1), about 2/eps
    assert row["average"]["noise"] == pytest.approx(0.1 * k * (650 / 20) ** 0.5, rel=1e-3)
    assert row["average"]["ratio"] == pytest.approx(row["average"]["noise"] / 0.4, rel=1e-3)
    assert row["average"]["expect"] == LEVELS[-1][1]
    text = run(*TWO_POINT, "--radius", "0.1", "--clients", "20", "--update-norm", "0.4").stdout
    assert f"The noise of all rounds is 120 times the updates: {LEVELS[-1][1]}." in text


def test_the_range_follows_from_the_update_unless_given():
    (free,) = planned(*TWO_POINT, "--clients", "20", "--update-norm", "0.4")
    (given,) = planned(*TWO_POINT, "--clients", "20", "--update-norm", "0.4", "--radius", str(1.2 / 650**0.5))
    assert free["average"]["noise"] == pytest.approx(given["average"]["noise"], rel=1e-6)


def test_dp_sgd_needs_no_values_and_hides_records():
    (row,) = planned(
        "--mechanism", "dp-sgd", "--steps", "20", "--rate", "0.1", "--rounds", "10", "--epsilon", "5", "--delta", "1e-5"
    )  # fmt: skip
    assert row["parameter"] == {"name": "noise multiplier", "value": 1.6707}
    assert row["budget"]["adjacency"] == "record (add/remove)"
    assert row["all_rounds"]["statement"] == pytest.approx(4.313, abs=2e-3)


@pytest.mark.process
def test_all_mechanisms_are_compared_if_none_is_named():
    names = [
        row["mechanism"] for row in planned("--values", "20", "--rounds", "2", "--epsilon", "8", "--delta", "1e-5")
    ]
    assert names == [
        "two-point", "sign", "laplace (box)", "laplace (l1)", "piecewise", "exponential", "gaussian (box)",
        "gaussian (l2)",
    ]  # fmt: skip
    without = planned("--values", "20", "--rounds", "2", "--epsilon", "8")
    assert [row["mechanism"] for row in without] == [name for name in names if "gaussian" not in name]


def test_every_mechanism_that_can_be_planned_is_offered():
    planned_ones = {name for name, mechanism in mechanisms().items() if mechanism.tunings(Ranges(1.0, 1.0))}
    assert {*NAMES} == {*planned_ones, "dp-sgd", "private-head"}


def test_the_other_way_round_it_counts_rounds():
    asked = ("--mechanism", "laplace", "--norm", "l1", "--values", "650", "--epsilon", "50", "--parameter", "4")
    assert planned(*asked)[0]["rounds"] == 12
    words = run(*asked).stdout
    assert "a budget of epsilon 50 (proven, against server, adjacency client, delta 0) allows 12 rounds" in words
    sgd = ("--mechanism", "dp-sgd", "--steps", "20", "--rate", "0.1", "--epsilon", "5", "--delta", "1e-5")
    assert planned(*sgd, "--parameter", "1.6707")[0]["rounds"] == 10
    assert planned(*sgd, "--parameter", "1.65")[0]["rounds"] == 9


def test_a_recipe_is_planned_with_its_own_model_clients_and_rounds():
    pytest.importorskip("torch")
    settings = ("--set", "rounds.count=10", "--set", "split.clients=20", "--set", "clients.epsilon=1")
    (row,) = planned("two-point-digits", *settings, "--epsilon", "50")
    assert (row["values"], row["rounds"], row["average"]["clients"]) == (650, 10, 20)
    assert row["parameter"] == {"name": "clients.epsilon", "value": 0.0076923}
    (other,) = planned("two-point-digits", *settings, "--epsilon", "50", "--mechanism", "laplace", "--norm", "l1")
    assert other["parameter"] == {"name": "epsilon per upload", "value": 5.0}


def test_a_recipe_of_what_is_only_claimed_is_planned_by_claims_and_refused_a_proven_budget():
    pytest.importorskip("torch")
    settings = ("--set", "rounds.count=20", "--set", "data.source=digits", "--set", "model.name=logistic")
    (row,) = planned("ldp-fl-mnist-privunit", *settings)
    assert row["budget"]["basis"] == "claimed"
    assert row["parameter"] == {"name": "clients.epsilon", "value": 25.0}
    assert row["all_rounds"]["statement"] in ("infinite", "infinite")
    refused = run("ldp-fl-mnist-privunit", *settings, "--epsilon", "500")
    assert refused.exit_code == 1 and "gaussian with norm l2" in " ".join(refused.stderr.split())


def test_a_recipes_own_budgets_are_planned_one_by_one():
    pytest.importorskip("torch")
    settings = ("--set", "clients.budget.limit.values=[6500, 650]", "--set", "clients.budget.limit.shares=[0.5, 0.5]")
    rows = planned("two-point-digits", *settings, "--rounds", "10")
    assert [(row["budget"]["limit"], row["parameter"]["value"]) for row in rows] == [(650, 0.1), (6500, 1.0)]


@pytest.mark.parametrize(
    ("mechanism", "parameter"),
    [
        ('{ name = "exponential", precision = 4 }', "clients.epsilon"),
        ('{ name = "gaussian", calibration = "analytic", delta = 1e-5 }', "clients.epsilon"),
        ('{ name = "gaussian", calibration = "sigma", sigma = 1.0 }', "method.mechanism.sigma"),
        ('{ name = "sign", calibration = "sigma", sigma = 1.0 }', "method.mechanism.sigma"),
    ],
    ids=["exponential", "analytic", "gaussian-sigma", "sign-sigma"],
)
def test_every_kind_of_mechanism_in_a_recipe_can_be_planned(mechanism, parameter, tmp_path):
    pytest.importorskip("torch")
    epsilon = "epsilon = 0.001" if parameter == "clients.epsilon" else ""
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'name = "mine"\n[data]\nsource = "digits"\n[split]\nkind = "iid"\nclients = 4\n[model]\nname = "logistic"\n'
        f'[clients]\n{epsilon}\n[method]\nname = "fedavg"\nmechanism = {mechanism}\n'
        '[method.range]\nkind = "fixed"\nradius = 0.1\n[rounds]\ncount = 3\n'
    )
    (row,) = planned(str(recipe), "--epsilon", "30", "--delta", "1e-5")
    assert row["parameter"]["name"] == parameter
    assert 29.9 < row["all_rounds"]["ledger"] <= 30


def test_a_silos_target_is_the_budget_of_its_recipe():
    pytest.importorskip("torch")
    (row,) = planned("quickstart")
    assert row["mechanism"] == "dp-sgd"
    assert row["budget"]["adjacency"] == "record (add/remove)"
    assert row["average"]["noise"] > 0


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--mechanism", "two-points", "--values", "1", "--rounds", "1", "--epsilon", "1"), "two-point, sign"),
        (("--values", "10", "--rounds", "1"), "--epsilon is missing"),
        (("--mechanism", "two-point", "--rounds", "1", "--epsilon", "1"), "--values is missing"),
        (("--mechanism", "two-point", "--values", "5", "--epsilon", "1"), "--rounds is missing"),
        (("--mechanism", "two-point", "--values", "0", "--rounds", "1", "--epsilon", "1"), "--values must be"),
        (("--mechanism", "dp-sgd", "--rounds", "1", "--epsilon", "1", "--delta", "1e-5"), "--steps is missing"),
        (("--mechanism", "gaussian", "--values", "5", "--rounds", "1", "--epsilon", "1"), "a delta"),
        (("--mechanism", "laplace", "--norm", "l2", "--values", "5", "--rounds", "1", "--epsilon", "1"), "box, l1"),
        (("--mechanism", "two-point", "--values", "1000000", "--rounds", "1000", "--epsilon", "1"), "fewer rounds"),
        (("--mechanism", "laplace", "--values", "5", "--epsilon", "1", "--parameter", "1"), "one mechanism"),
        ((*TWO_POINT, "--parameter", "1"), "not both"),
        ((*TWO_POINT, "--adjacency", "label"), "record-replace"),
        ((*TWO_POINT, "--adjacency", "household"), "client"),
        ((*TWO_POINT, "--update-norm", "0"), "--update-norm must be"),
        ((*TWO_POINT, "--set", "rounds.count=3"), "name one"),
        (("no-such-recipe", "--epsilon", "1"), "no recipe 'no-such-recipe'"),
        (("fedavg-digits", "--epsilon", "1"), "adds no noise"),
        (("two-point-digits",), "sets no budget"),
        (("two-point-digits", "--delta", "1e-5"), "give --epsilon"),
        ((*TWO_POINT, "--maps", "3"), "private-head"),
        ((*HEAD, "--values", "39701"), "39,700"),
        ((*HEAD, "--values", "39700", "--rounds", "1"), "2 or more"),
        ((*HEAD, "--values", "39700", "--clients", "3"), "--honest 1"),
        ((*HEAD, "--values", "39700", "--honest", "91"), "90 of 100"),
        ((*HEAD, "--values", "39700", "--radius", "1"), "--radius"),
        ((*HEAD, "--values", "39700", "--adjacency", "label"), "record-add-remove or client"),
        ((*HEAD, "--values", "39700", "--mechanism", "laplace"), "by itself"),
        (("quickstart", "--mechanism", "private-head"), "none of private-head"),
    ],
    ids=lambda v: "-".join(v).replace("--", "") if isinstance(v, tuple) else "",
)
def test_bad_arguments_are_refused_with_a_remedy_and_no_traceback(arguments, remedy):
    result = run(*arguments)
    assert result.exit_code == 1
    assert remedy in result.stderr
    assert "Traceback" not in result.stderr


def command_of_the_guide(start: str) -> list[str]:
    (command,) = re.findall(rf"\$ sordino plan ({start} .*)", PAGE)
    return str(command).split()


def rows_of_the_guide(head: str) -> list[list[str]]:
    """The cells of the page's table that begins with this head."""
    lines = PAGE.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.process
def test_the_table_of_the_guide_is_what_its_command_prints():
    shown = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in run(*command_of_the_guide("--values")).stdout.splitlines()
        if line.startswith("│")
    ]
    assert rows_of_the_guide("| mechanism |") == [[row[0], row[1], row[3], row[4], row[6]] for row in shown]


def test_the_guide_says_what_is_left_of_an_update_where_noise_is_louder_than_it_looks():
    answers = json.loads(run(*command_of_the_guide("--values"), "--json").stdout)
    (average,) = (answer["average"] for answer in answers if answer["mechanism"] == "laplace (l1)")
    for figure, value in (("0.58", average["noise"]), ("0.016", average["update"])):
        assert f"{value:.2g}" == figure and figure in PAGE


def test_the_other_figures_of_the_guide_are_what_its_commands_print():
    text = run(*command_of_the_guide("quickstart")).stdout
    assert all(figure in text and figure in PAGE for figure in ("13.596", "0.866"))
    silo = command_of_the_guide("--mechanism dp-sgd")
    for more, figures in (((), ("1.6707", "4.32")), (("--adjacency", "record-replace"), ("3.0338", "4.03"))):
        text = run(*silo, *more).stdout
        assert all(figure in text and figure in PAGE for figure in figures)
    (asked, answer), *_ = re.findall(r"\$ sordino plan (.* --parameter 4)\n(.*)", PAGE)
    assert run(*asked.split()).stdout.startswith(answer)


def test_the_guides_words_for_noise_are_those_of_the_recorded_runs():
    """Each row: from which level on, the words, how many experiments, and what their median and nine tenths keep."""
    recorded = json.loads((Path(__file__).parent.parent / "benchmarks" / "results" / "noise.json").read_text())
    found = [(point["ratio"] / math.sqrt(point["rounds"]), point["kept"]) for point in recorded if point["ratio"]]
    assert f"{len(found)} experiments" in PAGE
    rows = rows_of_the_guide("| level |")
    for row, (least, words), (next_least, _) in zip(rows, LEVELS, (*LEVELS[1:], (math.inf, "")), strict=True):
        kept = sorted(share for level, share in found if least <= level < next_least)
        shares = f"{statistics.median(kept):.0%}", f"{math.floor(100 * kept[len(kept) // 10])}%"
        level = f"from {least:g}" if least else f"below {next_least:g}"
        assert row == [level, words, str(len(kept)), *(share.replace("%", " %") for share in shares)]


def test_the_help_shows_whole_commands():
    text = run("--help").stdout
    assert "--mechanism dp-sgd --steps 20 --rate 0.1" in " ".join(text.split())


@pytest.mark.process
def test_planning_without_a_recipe_does_not_load_the_learning_stack():
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom sordino.cli import app\n"
        f"result = CliRunner().invoke(app, ['plan', *{TWO_POINT!r}])\n"
        "print(result.exit_code, sorted({'torch', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "0 []\n"


# --- a linear head on public features


def test_a_head_is_planned_from_plain_numbers_to_grids_noise_and_bytes():
    pytest.importorskip("torch")
    found = planned(*HEAD, "--values", "39700")
    moments, gradient = found["sums"]
    assert (found["honest"], found["adversary"], found["adjacency"]) == (80, "summed(80)", "record (add/remove)")
    assert (moments["times"], moments["values"], gradient["times"], gradient["values"]) == (
        1,
        81 * 82 // 2 + 81,
        50,
        39700,
    )
    grid = found["grid"]
    assert grid["row"] * grid["residual"] == grid["clip"] == gradient["steps"]
    assert gradient["noise_multiplier"] == pytest.approx(2 ** gradient["noise_bits"] * 80**0.5 / grid["clip"], rel=1e-6)
    square = moments["noise_multiplier"] ** -2 + 50 * gradient["noise_multiplier"] ** -2  # mu^2 adds up
    assert moments["noise_multiplier"] ** -2 / square == pytest.approx(found["moments_share"], rel=0.02)
    assert 0.9 < found["proven"] <= 1.0 < found["proven_alone"]
    largest = 2 * 60_000 * grid["clip"]  # no sum of twice the records announced wraps around
    assert 2 ** (gradient["modulus_bits"] - 1) > largest
    assert gradient["report_bytes"] == -(-39700 * gradient["modulus_bits"] // 8)
    per_value = gradient["noise_multiplier"] * (100 / 80) ** 0.5 * 0.03 / 60_000  # all silos' noise, over all records
    assert gradient["mean_noise"] == pytest.approx(per_value, rel=0.1)


def test_two_silos_alone_need_no_secure_sum():
    pytest.importorskip("torch")
    settings = ("data.source=digits", "data.train_limit=60", "method.extractor.angles=2")
    changes = [part for setting in settings for part in ("--set", setting)]
    found = planned("proven-mnist", "--clients", "2", "--honest", "1", "--set", "split.clients=10", *changes)
    assert (found["honest"], found["adversary"]) == (1, "server")


def test_every_silo_alone_needs_as_much_noise_as_all_honest_ones_together():
    pytest.importorskip("torch")
    summed, alone = (planned(*HEAD, "--values", "39700", *more) for more in ((), ("--honest", "1")))
    assert (alone["honest"], alone["adversary"]) == (1, "server")
    assert alone["proven"] == pytest.approx(summed["proven"], rel=0.01) == alone["proven_alone"]
    for own, other in zip(alone["sums"], summed["sums"], strict=True):
        assert own["noise_multiplier"] == pytest.approx(other["noise_multiplier"], rel=0.05)
        assert own["mean_noise"] == pytest.approx(other["mean_noise"] * 80**0.5, rel=0.15)


def test_a_recipe_of_a_head_is_planned_with_its_own_numbers_and_those_given():
    pytest.importorskip("torch")
    own = ("proven-digits", "--set", "split.clients=10", "--clients", "20", "--epsilon", "2", "--rounds", "8")
    found = planned(*own)
    assert (found["clients"], found["epsilon"], found["rounds"]) == (20, [2.0], 8)
    assert found["proven"] <= 2.0
    text = run(*own).stdout
    assert "8 rounds of 20 silos" in text and "bytes a report" in text.replace("\n", " ")


def test_the_guide_says_what_the_noise_of_a_head_proves():
    pytest.importorskip("torch")
    found = planned(*command_of_the_guide("--mechanism private-head"))
    assert found["honest"] == 80 and found["proven"] <= 1.0 and f"{found['proven_alone']:.3g}" == "12.5"
    assert "80 honest" in PAGE and "12.5" in PAGE


@pytest.mark.parametrize(("given", "delta"), [((), 1e-5), (("--delta", "1e-6"), 1e-6)])
def test_an_epsilon_of_ones_own_keeps_the_recipes_delta(given, delta):
    recipe = ("quickstart", "--set", "rounds.count=2", "--set", "clients.budget=")
    (row,) = planned(*recipe, "--epsilon", "1", *given)
    assert row["round"]["delta"] == delta


OWN_CODE = (
    "--set", "clients.budget=", "--set", "rounds.count=2", "--set", "model.name=tests.methods.own_networks:Plain",
    "--set", "model.per_record=true",
)  # fmt: skip


@pytest.mark.parametrize("names", [(), ("--mechanism", "dp-sgd", "--steps", "20", "--rate", "0.1")])
@pytest.mark.parametrize("code", [OWN_CODE, (*OWN_CODE[:-1], "model.per_record=false")])
def test_of_own_code_the_plan_proves_nothing_as_the_run_proves_nothing(names, code):
    pytest.importorskip("torch")
    recipe = ("quickstart", *code, "--epsilon", "3", *names)
    (row,) = planned(*recipe)
    assert {row["round"]["epsilon"], *(row["all_rounds"][own] for own in ("ledger", "statement"))} == {"infinite"}
    assert row["round"]["basis"] == row["all_rounds"]["basis"] == "none"
    assert "proven by" not in run(*recipe).stdout


def test_no_round_of_own_code_fits_a_budget():
    pytest.importorskip("torch")
    found = planned("quickstart", *OWN_CODE, "--epsilon", "3", "--parameter", "100")
    assert (found[0]["rounds"], found[0]["round"]["epsilon"]) == (0, "infinite")
