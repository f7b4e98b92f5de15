"""The figures of a run for notebooks: curves, what was spent by when, a table, and the same from a folder."""

import math
import sys

import pytest

import sordino
from sordino.errors import InvalidInput
from sordino.privacy import accountant
from sordino.privacy.guarantee import RandomizedBit
from sordino.privacy.spending import RoundSpending
from sordino.report.records import RoundRecord
from sordino.runs.observer import Observer, together
from sordino.runs.run_figures import numbers
from sordino.runs.tensorboard import TensorBoard
from tests.engine.tiny import TWO_POINT, VALUES, recipe


@pytest.fixture(scope="module")
def two_point(tmp_path_factory):
    """Three rounds of one randomised bit per weight, epsilon 1 each."""
    return sordino.run(recipe(TWO_POINT, **{"evaluation.every": 2}), folder=tmp_path_factory.mktemp("run") / "a")


def test_what_is_spent_grows_by_every_release_and_ends_at_the_statement(two_point):
    spent = two_point.spending()
    assert [one.round for one in spent] == [1, 2, 3]
    t_min = math.ceil(2**32 / (math.e + 1))
    bits = [RandomizedBit(t_min, n * VALUES) for n in (1, 2, 3)]
    assert [one.proven for one in spent] == pytest.approx([accountant.epsilon(loss, 1e-5) for loss in bits])
    assert [one.claimed for one in spent] == pytest.approx([VALUES, 2 * VALUES, 3 * VALUES])
    assert spent[-1].proven == two_point.lead.proven[1]
    assert spent[-1].claimed == two_point.lead.claimed[1]


def test_private_training_spends_less_than_the_sum_of_its_rounds():
    outcome = sordino.run(sordino.Recipe.load("quickstart", ["rounds.count=3", "data.train_limit=300"]), workers=1)
    first, second, third = (one.proven for one in outcome.spending())
    assert first < second < third < 3 * first
    assert third == outcome.lead.proven[1]


def test_what_sends_everything_has_spent_everything():
    outcome = sordino.run(recipe())
    assert [one.proven for one in outcome.spending()] == [math.inf] * 3


def test_spending_may_leave_out_rounds_but_never_the_last(two_point):
    assert [one.round for one in two_point.spending(every=2)] == [2, 3]
    with pytest.raises(InvalidInput, match="every"):
        two_point.spending(every=0)


def test_a_curve_has_the_rounds_that_were_measured(two_point):
    rounds, accuracy = two_point.curve("accuracy")
    assert rounds.tolist() == [2, 3]
    assert accuracy.tolist() == [two_point.rounds[1].accuracy, two_point.rounds[2].accuracy]
    epsilon, same = two_point.curve("accuracy", "epsilon_proven")
    assert same.tolist() == accuracy.tolist() and epsilon.tolist() == [one.proven for one in two_point.spending(2)]


@pytest.mark.parametrize("name", ["acuracy", "adversary"])
def test_what_is_no_figure_is_refused(two_point, name):
    with pytest.raises(InvalidInput, match=name):
        two_point.curve(name)


def test_a_folder_gives_the_same_figures_back(two_point):
    again = sordino.load_run(two_point.folder)
    assert again.result == two_point.result and again.rounds == two_point.rounds
    assert again.releases == two_point.releases and again.spending() == two_point.spending()
    assert again.to_json() == two_point.to_json()


def test_a_run_that_is_not_over_is_not_loaded(tmp_path):
    class Stop(Observer):
        def round(self, record, attendance):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sordino.run(recipe(), folder=tmp_path / "half", observer=Stop())
    with pytest.raises(InvalidInput, match="--resume"):
        sordino.load_run(tmp_path / "half")


def test_a_table_has_one_row_per_round_and_says_what_its_epsilons_mean(two_point):
    pytest.importorskip("pandas")
    frame = two_point.to_frame()
    assert frame.index.tolist() == [1, 2, 3]
    assert frame["accuracy"].isna().tolist() == [True, False, False]
    assert frame["epsilon_proven"].tolist() == [one.proven for one in two_point.spending()]
    assert set(frame["adjacency"]) == {"client"} and set(frame["adversary"]) == {"server"}
    assert two_point.to_frame(every=3)["epsilon_proven"].isna().tolist() == [True, True, False]


def test_without_pandas_the_remedy_is_named(two_point, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match=r"sordino\[notebook\]"):
        two_point.to_frame()


# --- observers --------------------------------------------------------------------------------------------------------


def test_several_observers_are_told_in_their_order_from_start_to_finish():
    told = []

    class Listening(Observer):
        def __init__(self, name):
            self.name = name

        def started(self, federation, preflight, first):
            told.append((self.name, "started", first))

        def round(self, record, attendance):
            told.append((self.name, "round", record.round))

        def finished(self, outcome):
            told.append((self.name, "finished", outcome.result.rounds))

    sordino.run(recipe({"rounds.count": 1}), observer=[Listening("a"), Listening("b")])
    assert told == [(who, *what) for what in (("started", 1), ("round", 1), ("finished", 1)) for who in "ab"]


def test_one_observer_stands_for_itself():
    one = Observer()
    assert together(one) is one


def test_numbers_of_a_round_leave_out_what_was_not_measured():
    found = numbers(RoundRecord(3, accuracy=0.5, reported=2, spent_max=math.inf))
    assert found["accuracy"] == 0.5 and found["reported"] == 2.0
    assert not {"round", "loss", "spent_max"} & set(found)


class Writer:
    """What PyTorch's writer of events offers, remembered."""

    def __init__(self, folder, first):
        self.folder, self.first = folder, first
        self.scalars, self.texts, self.closed = {}, {}, False

    def add_scalar(self, name, value, step):
        self.scalars[name, step] = value

    def add_text(self, name, text, step):
        self.texts[name] = text

    def flush(self):
        pass

    def close(self):
        self.closed = True


def test_tensorboard_gets_every_round_and_the_epsilons_spent(tmp_path):
    writers = []

    def write(folder, first):
        writers.append(Writer(folder, first))
        return writers[-1]

    outcome = sordino.run(recipe(TWO_POINT), observer=TensorBoard(tmp_path, write=write))
    (writer,) = writers
    assert writer.closed and writer.first == 1
    assert [writer.scalars["accuracy", n] for n in (1, 2, 3)] == [record.accuracy for record in outcome.rounds]
    assert writer.scalars["simulation/train_loss", 1] == outcome.rounds[0].simulation.train_loss
    spent = [
        RoundSpending(n, writer.scalars["epsilon/proven", n], writer.scalars["epsilon/claimed", n]) for n in (1, 2, 3)
    ]
    assert tuple(spent) == outcome.spending()
    assert "everything one client sends" in writer.texts["statement"]


def test_a_resumed_run_counts_what_was_released_before(tmp_path):
    writers = []

    def write(folder, first):
        writers.append(Writer(folder, first))
        return writers[-1]

    class Stop(Observer):
        def round(self, record, attendance):
            if record.round == 2:
                raise KeyboardInterrupt

    given, folder = recipe(TWO_POINT), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        sordino.run(given, folder=folder, observer=[TensorBoard(tmp_path, write=write), Stop()])
    outcome = sordino.run(given, folder=folder, resume=True, observer=TensorBoard(tmp_path, every=2, write=write))
    first, second = writers
    whole = outcome.spending()
    assert first.scalars["epsilon/proven", 2] == whole[1].proven and second.first == 3
    assert {step for name, step in second.scalars if name == "epsilon/proven"} == {3}
    assert second.scalars["epsilon/proven", 3] == whole[2].proven


def test_without_tensorboard_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InvalidInput, match=r"sordino\[notebook\]"):
        TensorBoard(tmp_path)


def test_the_real_tensorboard_writes_a_file_of_events(tmp_path):
    pytest.importorskip("tensorboard")
    sordino.run(recipe(), observer=TensorBoard(tmp_path / "logs"))
    assert [path.name.startswith("events.out.tfevents") for path in (tmp_path / "logs").iterdir()] == [True]
