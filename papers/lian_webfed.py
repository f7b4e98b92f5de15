"""The experiments of WebFed (Lian, Yang, Zeng, Su 2022): section 4.2.2 and Figure 4, and what the paper leaves open."""

from __future__ import annotations

from papers.experiments import Experiment, Gain

RECIPE = "webfed-mnist"
QUICK = ("data.train_limit=200", "data.test_limit=200", "rounds.count=2", "evaluation.every=1")
NOISE_FREE = ('method.mechanism={ name = "none" }', "method.range=", "clients.epsilon=")
CURVES = "MNIST over rounds"
AXIS = "round; epsilons are claimed, of one upload of a client, against the server"

#: title -> settings, and the accuracies stated after 50 and after 200 rounds
STATED: dict[str, tuple[tuple[str, ...], float, float]] = {
    "no noise": (NOISE_FREE, 80.0, 92.0),
    "epsilon 6": (("clients.epsilon=6.0",), 80.0, 90.0),
    "epsilon 3": ((), 72.0, 87.0),
}


FITTED = ("no noise", "epsilon 3")  #: the learning rate and C, by both figures each


def _headline(name: str) -> Experiment:
    overrides, after_50, after_200 = STATED[name]
    return Experiment(
        name.replace(" ", "-"),
        f"MNIST, {name}, 200 rounds",
        RECIPE,
        overrides,
        QUICK,
        figure=after_200,
        about=True,
        where="section 4.2.2, Figure 4",
        seeds=3,
        priority=1,
        earlier=((50, after_50),),
        curves=CURVES,
        axis=AXIS,
        line=name,
        fitted=name in FITTED,
    )


# --- what Delta s may be ----------------------------------------------------------------------------------------------

FEW = ("rounds.count=50",)


def _reading(name: str, title: str, note: str, *overrides: str) -> Experiment:
    return Experiment(
        f"reading-{name}",
        f"MNIST, epsilon 3, Delta s = {title}, 50 rounds",
        RECIPE,
        (*FEW, *overrides),
        QUICK,
        where="line 11, not defined",
        note=note,
    )


def _box(radius: float, note: str) -> Experiment:
    title = f"2C with C = {radius:g}"
    return _reading(f"box-{radius:g}", title, note, "method.mechanism.records=1", f"method.range.radius={radius}")


READINGS = (
    _box(1.0, "Each weight clipped to [-1, 1]; epsilon 3 is proven for one weight of one upload."),
    _box(0.2, "The smallest C that clips none of the first weights."),
    _box(0.05, "Less noise, and most of the weights of the first layer clipped."),
    _reading(
        "l1",
        "2C in L1 norm, C = 100",
        "Epsilon 3 is proven for a whole upload. The L1 norm of LeNet's first weights is 1,830.",
        'method.mechanism={ name = "laplace", norm = "l1" }',
        "method.range.radius=100.0",
    ),
    _reading(
        "whole",
        "2C/m with m = 12,000",
        "All of MNIST, dealt to five clients: ten steps on 30 records each as before, and a fortieth of the noise.",
        "data.train_limit=0",
        "training.epochs=",
        "training.steps=10",
        "method.mechanism.records=12000",
    ),
)


# --- what a round is --------------------------------------------------------------------------------------------------

#: The step size was chosen as that of the recipe was.
ONE_STEP = (
    "training.epochs=", "training.steps=1", "training.batch_size=0",
    'training.optimizer={ name = "adam", lr = 0.0005 }',
)  # fmt: skip


def _one_step(name: str) -> Experiment:
    return Experiment(
        f"one-step-{name.replace(' ', '-')}",
        f"MNIST, one step a round (FedSGD), {name}, 200 rounds",
        RECIPE,
        (*ONE_STEP, *STATED[name][0]),
        QUICK,
        where="Algorithm 1, line 9",
        note="On all records of a client, by Adam, which the paper names; its memory begins anew in every round.",
        curves="MNIST over rounds, one step in each",
        axis=AXIS,
        line=name,
    )


SELECTED = Experiment(
    "selected-3",
    "MNIST, epsilon 3, 3 of 5 clients in a round, 200 rounds",
    RECIPE,
    ('method.selection={ kind = "count", k = 3 }',),
    QUICK,
    where="Algorithm 1, line 6",
    note="In the paper's experiments all clients take part. The mean of fewer has more noise.",
)


# --- how reports weigh ------------------------------------------------------------------------------------------------

#: Clients of unequal sizes; the smallest is m, and C/m stays what it is in the recipe.
UNEQUAL = (
    'split={ kind = "sizes", sizes = [100, 200, 300, 400, 500] }', "method.mechanism.records=100",
    "method.range.radius=3.0",
)  # fmt: skip
WEIGHTS = {
    "equal": ("all count alike", 'method.aggregation={ kind = "mean" }', "No number is sent."),
    "samples": (
        "weighed by |D_i|",
        'method.aggregation={ kind = "samples" }',
        "The number is sent as it is: of it, nothing is proven.",
    ),
    "noisy-samples": (
        "weighed by noisy |D_i|",
        'method.aggregation={ kind = "noisy-samples", epsilon = 1.0, limit = 1000 }',
        "Announced once, with Laplace noise: a release of its own, of epsilon 1 for a client.",
    ),
}


def _weights(name: str) -> Experiment:
    title, override, note = WEIGHTS[name]
    return Experiment(
        f"weights-{name}",
        f"MNIST, epsilon 3, 100 to 500 records, {title}, 50 rounds",
        RECIPE,
        (*FEW, *UNEQUAL, override),
        (*QUICK, 'split={ kind = "sizes", sizes = [20, 30, 40, 50, 60] }'),
        where="Algorithm 1, line 16",
        priority=3,
        note=note,
    )


# --- an epsilon that holds --------------------------------------------------------------------------------------------

PROVEN = Experiment(
    "proven-3",
    "MNIST, DP-SGD in five silos, budget 3 for a record",
    "webfed-mnist-silo-dp",
    quick=("data.train_limit=2000", "data.test_limit=200", "rounds.count=2"),
    where="not in the paper",
)

EXPERIMENTS = (
    *(_headline(name) for name in STATED),
    PROVEN,
    *READINGS,
    _one_step("no noise"),
    _one_step("epsilon 3"),
    SELECTED,
    *(_weights(name) for name in WEIGHTS),
)

GAINS = (
    Gain(
        "gap",
        "MNIST, after round 50: points that epsilon 3 is behind epsilon 6 and no noise, mean of both",
        (("epsilon-6", "epsilon-3"), ("no-noise", "epsilon-3")),
        10.0,
        "section 4.2.2",
        fitted=True,
        private="epsilon-3",
        about=True,
        at=50,
    ),
)

ON_PAGE = ("no-noise", "epsilon-6", "epsilon-3", "gap", "proven-3")
IN_OVERVIEW = {"epsilon-6": "MNIST, epsilon 6", "epsilon-3": "MNIST, epsilon 3"}
