"""The experiments of LDPFL (Arachchige et al. 2022): section 4, Figures 2 to 12, Table 1, and the idea done right."""

from __future__ import annotations

from dataclasses import replace

from papers.experiments import Experiment

SMALL = ("data.train_limit=400", "data.test_limit=200", "training.epochs=2", "model.options.hidden=[16]")
FEW = ("method.extractor.training.epochs=2", "rounds.count=2")
QUICK = (*SMALL, *FEW)
QUICK_LOCAL = ("data.train_limit=400", "data.test_limit=200", "training.epochs=2")
#: For the deeper extractor, which takes ten times as long over an image.
DEEP = (
    "data.test_limit=50",
    "training.epochs=2",
    "model.options.hidden=[16]",
    "method.extractor.training.epochs=1",
    "rounds.count=2",
)
DEEP_LOCAL = ("data.test_limit=50", "training.epochs=1", "training.batch_size=16")
QUICK_DEEP = ("data.train_limit=100", *DEEP)
QUICK_TEN = ("data.train_limit=400", *DEEP, "method.extractor.training.batch_size=16")
LOST = "figure lost"

FASHION_MNIST = Experiment(
    "fashion-mnist-80",
    "Fashion-MNIST, 9 of 10 clients a round, 80 rounds",
    "ldpfl-fashion-mnist",
    quick=QUICK_TEN,
    figure=81.0,
    about=True,
    where="Table 1, Figure 6b",
    seeds=3,
    priority=1,
    curves="Fashion-MNIST over rounds",
    line="9 of 10 clients a round",
)

HEADLINES = (
    Experiment(
        "mnist",
        "MNIST, 2 clients",
        "ldpfl-mnist",
        quick=QUICK,
        figure=98.0,
        said="up to 98",
        where="abstract, Figure 3",
        seeds=3,
        priority=1,
        group="MNIST over alpha",
        x=10.0,
        axis="alpha",
        note='The paper says "up to 98 %", and not of which data set.',
    ),
    FASHION_MNIST,
    replace(
        FASHION_MNIST,
        id="fashion-mnist",
        what="Fashion-MNIST, 9 of 10 clients a round, 10 rounds",
        overrides=("rounds.count=10",),
        where="the first 10 of 80 rounds",
        instead=(FASHION_MNIST.id, "10 rounds, three seeds"),
        curves="",
    ),
    Experiment(
        "cifar-10", "CIFAR-10, 2 clients", "ldpfl-cifar-10", quick=QUICK_DEEP, where=f"Figure 5, {LOST}", priority=1
    ),
)

FASHION = "ldp-fed-fashion-mnist"
QUICK_FASHION = ("data.train_limit=200", "data.test_limit=200", "split.clients=20", "rounds.count=5")
OTHERS = "Run as in LDP-Fed, where the figure is from: 9 of 50 clients a round, 80 rounds."

TABLE_1 = (
    Experiment(
        "table-non-private", "Fashion-MNIST: without privacy", f"{FASHION}-non-private",
        quick=QUICK_FASHION, figure=90.0, about=True, where="Table 1", note=OTHERS,
    ),
    Experiment(
        "table-smc", "Fashion-MNIST: secure sums", f"{FASHION}-smc",
        quick=QUICK_FASHION, figure=90.0, about=True, where="Table 1", note=OTHERS,
    ),
    Experiment(
        "table-dpsgd", "Fashion-MNIST: DP-SGD", f"{FASHION}-dpsgd",
        quick=QUICK_FASHION, figure=80.0, about=True, where="Table 1", note=OTHERS,
    ),
    Experiment(
        "table-cldp-fed", "Fashion-MNIST: alpha-CLDP-Fed", FASHION,
        quick=QUICK_FASHION, figure=86.93, said="85.28 to 86.93", where="Table 1",
        note="Compared with the upper end of the range, which is nearer.",
    ),
)  # fmt: skip


def _local(data: str, title: str, figure: str, quick: tuple[str, ...] = QUICK_LOCAL) -> Experiment:
    return Experiment(
        f"{data}-local", f"{title}: the local CNNs", f"ldpfl-{data}-local", quick=quick, where=f"{figure}, {LOST}"
    )


LOCAL = (
    _local("mnist", "MNIST", "Figure 2"),
    _local("cifar-10", "CIFAR-10", "Figure 4", ("data.train_limit=100", *DEEP_LOCAL)),
    _local("fashion-mnist", "Fashion-MNIST", "Figure 6a", ("data.train_limit=200", *DEEP_LOCAL)),
    _local("svhn", "SVHN, scaled down", "Figure 8", (*DEEP_LOCAL, "split.sizes=[20, 20, 20, 20]")),
)


def _alpha(alpha: float) -> Experiment:
    return Experiment(
        f"mnist-alpha-{alpha:g}", f"MNIST, alpha = {alpha:g}", "ldpfl-mnist", (f"method.mechanism.alpha={alpha}",),
        QUICK, where=f"Figure 12, {LOST}", group="MNIST over alpha", x=alpha, axis="alpha",
    )  # fmt: skip


def _svhn(clients: int) -> Experiment:
    sizes = ", ".join(["80"] * clients)
    few = ", ".join(["20"] * max(2, clients // 5))
    return Experiment(
        f"svhn-{clients}", f"SVHN, scaled down, {clients} clients", "ldpfl-svhn", (f"split.sizes=[{sizes}]",),
        (*DEEP, f"split.sizes=[{few}]"),
        where=f"Figures 9 to 11, {LOST}", priority=2 if clients <= 20 else 3,
        group="SVHN over clients", x=float(clients), axis="clients",
        note="Clients with 80 records of a subset of 4,000; the paper's have 4,514 of 451,461." if clients == 2 else "",
    )  # fmt: skip


UNRANDOMISED = ("method.mechanism.name=none", "clients.epsilon=", "clients.budget=")

WITHOUT_FEDERATION = (
    Experiment(
        "cifar-10-alone", "CIFAR-10: dense networks without federation", "ldpfl-cifar-10", ("method.learning=alone",),
        QUICK_DEEP, where=f"Figure 5, third part, {LOST}",
        note="Each client's own network is asked about its own share of the test set, through its own extractor.",
    ),
    Experiment(
        "mnist-alone", "MNIST: dense networks without federation", "ldpfl-mnist", ("method.learning=alone",),
        QUICK, where="not in the paper", priority=3,
    ),
)  # fmt: skip

IMBALANCED = (
    Experiment(
        "imbalanced", "Fashion-MNIST, highly imbalanced", "ldpfl-fashion-mnist-imbalanced",
        ("rounds.count=10",), quick=(*QUICK_TEN, "split.at_least=10"), where=f"Figure 7, {LOST}",
    ),
    Experiment(
        "imbalanced-fedavg", "Fashion-MNIST, highly imbalanced: plain federated learning of the CNN",
        "ldpfl-fashion-mnist-fedavg",
        quick=("data.train_limit=400", *DEEP_LOCAL, "split.at_least=10", "training.batch_size=8", "rounds.count=2"),
        where=f"Figure 7, {LOST}",
    ),
    Experiment(
        "imbalanced-plain", "Fashion-MNIST, highly imbalanced: the same bits, not randomised",
        "ldpfl-fashion-mnist-imbalanced", ("rounds.count=10", *UNRANDOMISED, "method.examined=plain"),
        (*QUICK_TEN, "split.at_least=10"), where="not in the paper",
    ),
)  # fmt: skip

READINGS = {
    "mnist-plain-test": ("test features not randomised", ("method.examined=plain",)),
    "mnist-own-start": ("every network starts by itself", ("method.extractor.start=own",)),
    "mnist-lsb": ("the lowest bit first", ("method.encoding.order=lsb",)),
    "mnist-equation": ("Eq. 10 as printed, unsigned", ("method.encoding.reading=equation",)),
    "mnist-random-extractor": (
        "an untrained, public extractor",
        ('method.extractor={ kind = "random", model = "ldpfl-mnist" }',),
    ),
    "mnist-unrandomised": ("bits not randomised", (*UNRANDOMISED, "method.examined=plain")),
    "mnist-theorem-1": ("Theorem 1 in place of Theorem 2", ("method.mechanism.name=theorem-1",)),
}


def _reading(name: str) -> Experiment:
    what, overrides = READINGS[name]
    quick = tuple(s for s in QUICK if name != "mnist-random-extractor" or not s.startswith("method.extractor.training"))
    return Experiment(
        name, f"MNIST, {what}", "ldpfl-mnist", overrides, quick, where="not in the paper", priority=3,
    )  # fmt: skip


def _bounded(name: str, title: str, recipe: str) -> Experiment:
    """Another randomiser in place of the paper's."""
    what = f"MNIST, {title} on all bits, at epsilon 0.5 a record"
    return Experiment(name, what, recipe, quick=QUICK, where="not in the paper", priority=3)


def _done_right(epsilon: float) -> Experiment:
    return Experiment(
        f"public-{epsilon:g}", f"MNIST, done right: public features, epsilon {epsilon:g} a record",
        "ldpfl-mnist-public", (f"clients.epsilon={epsilon}", f"clients.budget.limit={epsilon}"),
        ("data.train_limit=5000", "data.test_limit=1000"),
        where="not in the paper", seeds=3, priority=1 if epsilon == 0.5 else 2,
        group="MNIST, epsilon of a record, features and label together", x=epsilon,
        axis="claimed epsilon of a record exchanged, all rounds, against the server",
        note="One release of each record, features and label together; its epsilon holds for real numbers."
        if epsilon == 0.5 else "",
    )  # fmt: skip


EXPERIMENTS = [
    *HEADLINES,
    *TABLE_1,
    *LOCAL,
    *(_alpha(alpha) for alpha in (4.0, 6.0, 8.0)),
    *(_svhn(clients) for clients in (2, 5, 10, 20, 50)),
    *WITHOUT_FEDERATION,
    *IMBALANCED,
    *(_reading(name) for name in READINGS),
    _bounded("mnist-rappor", "RAPPOR", "ldpfl-mnist-rappor"),
    _bounded("mnist-optimised", "OUE", "ldpfl-mnist-oue"),
    Experiment(
        "fashion-mnist-own-start", "Fashion-MNIST, every network starts by itself", "ldpfl-fashion-mnist",
        ("rounds.count=10", "method.extractor.start=own"), QUICK_TEN, where="not in the paper", priority=3,
    ),
    Experiment(
        "silo-dp", "MNIST: DP-SGD in two silos, budget 0.5 for a record", "ldpfl-mnist-silo-dp",
        quick=("data.train_limit=2000", "data.test_limit=500", "rounds.count=2"), where="not in the paper", seeds=3,
    ),
    *(_done_right(epsilon) for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)),
]  # fmt: skip

ON_PAGE = (
    "mnist", "fashion-mnist-80", "table-non-private", "table-smc", "table-dpsgd", "table-cldp-fed",
    "public-0.5", "silo-dp",
)  # fmt: skip
IN_OVERVIEW = {"mnist": "MNIST", "fashion-mnist-80": "Fashion-MNIST"}
