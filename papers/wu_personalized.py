"""Personalised LDP-FL (Wu, Xu, Zhu 2023): sections 5.2 and 5.3 as experiments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from papers.experiments import Experiment, Gain

# --- the settings of sections 5.2 and 5.3 -----------------------------------------------------------------------------

#: How reports are put together: A, B and C are the paper's names.
AGGREGATIONS = {
    "average": ("A, arithmetic average", 'method.aggregation={ kind = "mean" }'),
    "weighted": ("B, weighted average", 'method.aggregation={ kind = "inverse-deviation" }'),
    "selected": ("C, selection", 'method.aggregation={ kind = "selection", fallback = "redraw" }'),
    "selected-keep": ("C, selection that keeps W", 'method.aggregation={ kind = "selection", fallback = "keep" }'),
    "variance": ("ours, inverse variance", 'method.aggregation={ kind = "inverse-variance" }'),
}
NOISE_FREE = (
    'method.mechanism={ name = "none" }', "method.range=", "clients.epsilon=", 'method.aggregation={ kind = "mean" }',
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One data set of the paper, split in one way."""

    id: str
    title: str
    recipe: str
    figure: float  #: the accuracy without noise
    section: str
    same: tuple[float, ...]  #: epsilons that all clients share
    personal: tuple[tuple[float, ...], ...]  #: epsilons that differ
    seeds: int
    quick: tuple[str, ...]
    votes: bool = False

    @property
    def few_rounds(self) -> tuple[str, ...]:
        """Of a quick run; Eq. 4 has their number in it."""
        return ("rounds.count=3",) if self.votes else ("rounds.count=3", "method.mechanism.rounds=3")


def _halves(low: float, high: float) -> tuple[float, ...]:
    """{L, H}: of ten clients, five with each."""
    return (low,) * 5 + (high,) * 5


def _thirds(low: float, middle: float, high: float) -> tuple[float, ...]:
    """{L, M, H}: of ten clients, three, four and three."""
    return (low,) * 3 + (middle,) * 4 + (high,) * 3


SMALL = ("data.train_limit=10000", "data.test_limit=2000", "method.portion=50")

CASES = (
    Case(
        "digits", "digits, IID", "personalized-digits", 88.7, "5.2",
        (1.0, 5.0, 10.0), ((1.0, 1.0, 10.0), (1.0, 5.0, 10.0), (1.0, 10.0, 10.0)), 10, (),
    ),
    Case(
        "fashion", "Fashion-MNIST, IID", "personalized-fashion-mnist", 73.1, "5.2",
        (0.05, 0.5, 1.0), ((0.05, 0.05, 1.0), (0.05, 0.5, 1.0), (0.05, 1.0, 1.0)), 3, ("data.test_limit=2000",),
    ),
    Case(
        "covertype", "Covertype, IID", "personalized-covertype", 49.0, "5.2",
        (1.0, 5.0, 10.0), (_halves(1.0, 10.0), _thirds(1.0, 5.0, 10.0)), 3, SMALL,
    ),
    Case(
        "mnist-votes", "MNIST, Dirichlet", "personalized-mnist-non-iid", 65.2, "5.3",
        (5.0, 10.0, 15.0), (_halves(5.0, 15.0), _thirds(5.0, 10.0, 15.0)), 3, SMALL, votes=True,
    ),
    Case(
        "fashion-votes", "Fashion-MNIST, Dirichlet", "personalized-fashion-mnist-non-iid", 49.8, "5.3",
        (5.0, 10.0, 15.0), (_halves(5.0, 15.0), _thirds(5.0, 10.0, 15.0)), 3, SMALL, votes=True,
    ),
    Case(
        "covertype-votes", "Covertype, Dirichlet", "personalized-covertype-non-iid", 62.6, "5.3",
        (1.0, 5.0, 10.0), (_halves(1.0, 10.0), _thirds(1.0, 5.0, 10.0)), 3, SMALL, votes=True,
    ),
)  # fmt: skip


def _written(epsilons: Sequence[float]) -> str:
    """{1, 1, 10}, or {5 x 1, 5 x 10} where there are many."""
    if len(epsilons) <= 3:
        return "{" + ", ".join(f"{e:g}" for e in epsilons) + "}"
    return "{" + ", ".join(f"{epsilons.count(e)} x {e:g}" for e in dict.fromkeys(epsilons)) + "}"


#: Betas with noise, beside the recipes' own: the stated accuracies without noise lie between those of 0.1 and 0.2.
BETAS = (0.1, 0.15, 0.5)
BY_BETA = ("mnist-votes", "fashion-votes")

FITTED = ("digits", "fashion", "mnist-votes")  #: scale of features, passes and clock; beta


def _without_noise(case: Case) -> Experiment:
    return Experiment(
        f"{case.id}-none", f"{case.title}: no noise", case.recipe, NOISE_FREE,
        (*case.quick, "rounds.count=3"), case.figure, f"section {case.section}", max(3, case.seeds), 1,
        fitted=case.id in FITTED,
    )  # fmt: skip


def _alike(case: Case) -> Iterator[Experiment]:
    for epsilon in case.same:
        yield Experiment(
            f"{case.id}-same-{epsilon:g}", f"{case.title}: epsilon {epsilon:g} for all, average", case.recipe,
            (f"clients.epsilon={epsilon}", AGGREGATIONS["average"][1]), (*case.quick, *case.few_rounds),
            where=f"section {case.section}, figure lost", seeds=case.seeds,
            group=f"{case.title}: one epsilon for all", x=epsilon,
            axis="claimed epsilon of a client, all rounds, against the server",
        )  # fmt: skip


def setting_id(case: Case, epsilons: Sequence[float]) -> str:
    """The part of an experiment's name that says whose epsilons it has."""
    told = epsilons if len(epsilons) <= 3 else dict.fromkeys(epsilons)
    return f"{case.id}-{'-'.join(f'{e:g}' for e in told)}"


def _personal(case: Case) -> Iterator[Experiment]:
    for epsilons in case.personal:
        for name, (title, override) in AGGREGATIONS.items():
            if case.votes and name == "variance":
                continue
            headline = name in ("average", "weighted", "selected")
            yield Experiment(
                f"{setting_id(case, epsilons)}-{name}", f"{case.title}: {_written(epsilons)}, {title}", case.recipe,
                (f"clients.epsilon={list(epsilons)}", override), (*case.quick, *case.few_rounds),
                where=f"section {case.section}, figure lost", seeds=case.seeds,
                priority=1 if headline else 2,
            )  # fmt: skip


def _reading(case: Case, name: str, title: str, *overrides: str) -> Experiment:
    """Something that the paper leaves open, without noise."""
    quick = (*case.quick, "rounds.count=3")
    return Experiment(
        f"{case.id}-{name}", f"{case.title}: no noise, {title}", case.recipe, (*NOISE_FREE, *overrides), quick,
        where="not stated", priority=3,
    )  # fmt: skip


def _readings() -> Iterator[Experiment]:
    for case in CASES:
        yield _reading(case, "restarts", "the step size begins anew in every round", "method.schedule=restarts")
        if case.votes:
            for beta in sorted({0.1, 0.5, 1.0, 10.0, *(BETAS if case.id in BY_BETA else ())}):
                one = _reading(case, f"beta-{beta:g}", f"beta = {beta:g}", f"split.beta={beta}")
                group = f"{case.title}: no noise, by beta"
                yield replace(one, group=group, x=beta, axis="beta of the Dirichlet split")
            continue
        radius = 200.0 if case.id == "digits" else 2.0
        within = f'method.range={{ kind = "fixed", radius = {radius} }}'
        yield _reading(case, "clipped", "but clipped", 'method.mechanism={ name = "clip-only" }', within)
        for passes in () if case.id == "covertype" else (2, 5):
            yield _reading(case, f"passes-{passes}", f"{passes} passes in a round", f"training.epochs={passes}")


def _uneven(case: Case, epsilons: Sequence[float], name: str, beta: float) -> Experiment:
    """A personal setting with the records divided more or less unevenly."""
    title, override = AGGREGATIONS[name]
    return Experiment(
        f"{setting_id(case, epsilons)}-{name}-beta-{beta:g}",
        f"{case.title}: {_written(epsilons)}, {title}, beta = {beta:g}", case.recipe,
        (f"clients.epsilon={list(epsilons)}", override, f"split.beta={beta}"), (*case.quick, *case.few_rounds),
        where="not stated", seeds=3, priority=3,
    )  # fmt: skip


def _by_beta() -> Iterator[Experiment]:
    for case in CASES:
        if case.id in BY_BETA:
            settings = ((beta, epsilons) for beta in BETAS for epsilons in case.personal)
            yield from (_uneven(case, own, name, beta) for beta, own in settings for name in ("average", "selected"))


def _literal() -> Iterator[Experiment]:
    case = CASES[0]
    for name in ("average", "weighted", "selected"):
        title, override = AGGREGATIONS[name]
        yield Experiment(
            f"digits-literal-{name}", f"digits, IID: {{1, 1, 10}}, {title}, Eq. 4 as printed", case.recipe,
            ("clients.epsilon=[1.0, 1.0, 10.0]", override, "method.mechanism.reading=literal"), case.few_rounds,
            where="section 5.2, figure lost", seeds=case.seeds, priority=3,
        )  # fmt: skip


EXPERIMENTS = [
    *(experiment for case in CASES for experiment in (_without_noise(case), *_alike(case), *_personal(case))),
    *_readings(),
    *_by_beta(),
    *_literal(),
]


# --- what weighing and selecting gain over the average ----------------------------------------------------------------

#: What the paper states, in points over A, of B and of C; not for which of its settings. Of Covertype split unevenly it
#: says that there is no gain: 0 is made of these words.
STATED_GAINS: dict[str, tuple[float | None, float | None]] = {
    "digits": (5.57, 11.28),
    "fashion": (3.04, 3.93),
    "covertype": (4.07, 10.90),
    "mnist-votes": (None, 6.97),
    "fashion-votes": (None, 19.85),
    "covertype-votes": (0.0, 0.0),
}

#: The paper's "test dataset size".
TESTED = {
    "digits": 300, "fashion": 600, "covertype": 30_000,
    "mnist-votes": 2_400, "fashion-votes": 1_200, "covertype-votes": 30_000,
}  # fmt: skip


def _stated_gains() -> Iterator[Gain]:
    for case in CASES:
        for name, figure in zip(("weighted", "selected"), STATED_GAINS[case.id], strict=True):
            if figure is None:
                continue
            ids = [setting_id(case, epsilons) for epsilons in case.personal]
            pairs = tuple((f"{one}-{name}", f"{one}-average") for one in ids)
            what = f"{case.title}: points gained by {AGGREGATIONS[name][0]}, mean of {len(ids)} settings"
            fitted = case.id == "digits"  # the scale of features
            words = "" if figure else "no gain"
            yield Gain(
                f"{case.id}-gain-{name}", what, pairs, figure, f"section {case.section}", fitted,
                said=words, derived=words, tested=TESTED[case.id],
            )  # fmt: skip


GAINS = tuple(_stated_gains())

ON_PAGE = (
    "digits-none", "fashion-none", "covertype-none", "mnist-votes-none", "digits-gain-weighted", "digits-gain-selected",
    "fashion-gain-weighted", "covertype-gain-selected", "mnist-votes-gain-selected", "fashion-votes-gain-selected",
    "digits-1-1-10-weighted", "fashion-same-0.05",
)  # fmt: skip
IN_OVERVIEW = {
    "digits-none": "digits, no noise",
    "digits-gain-weighted": "digits, gain by weights",
    "fashion-votes-gain-selected": "Fashion, gain by selection",
}
