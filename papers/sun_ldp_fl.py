"""The experiments of LDP-FL (Sun, Qian, Chen 2021): section 5, Table 1, Figures 3 to 5, and what it compares with."""

from __future__ import annotations

from dataclasses import replace

from papers.experiments import Experiment, Gain

SMALL = ("data.train_limit=1000", "data.test_limit=500", "rounds.count=2")
QUICK = {
    "mnist": (*SMALL, "split.clients=20"),
    "fashion-mnist": (*SMALL, "split.clients=20", "model.options={ channels = [4, 8], hidden = 16 }"),
    "cifar-10": (
        "data.train_limit=200",
        "data.test_limit=100",
        "rounds.count=2",
        "split.clients=10",
        "model.options={ channels = [4, 4, 4], hidden = 16 }",
    ),
}
QUICK_CENTRAL = (*SMALL, "model.options.hidden=[32]")
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}

#: What is learnt does not depend on the channel, and the statement of a direct one is made in no time.
DIRECT = ("method.channel=",)
NOISE_FREE = ("method.mechanism.name=none", "method.range=", "clients.epsilon=", *DIRECT)

#: data set -> n, epsilon, accuracy, and the loss against no noise
HEADLINES = {
    "mnist": (100, 1.0, 96.24, 0.97),
    "fashion-mnist": (200, 4.0, 86.26, 1.32),
    "cifar-10": (500, 10.0, 61.46, 1.09),
}
FITTED = ("mnist", "fashion-mnist")  #: networks and local epochs, and Fashion-MNIST's range
NOTES = {
    "fashion-mnist": "The range printed, r = 0.015, is taken for 0.15.",
    "cifar-10": "Table 1 gives 60.37 for the same setting, and its row is of the same runs.",
}
#: data set -> accuracy at epsilon 5 and 10 with the fixed and the adaptive range; CIFAR-10's last is the headline's run
TABLE_1 = {
    "mnist": {"fixed": (96.34, 96.39), "adaptive": (96.06, 96.11)},
    "fashion-mnist": {"fixed": (85.95, 86.10), "adaptive": (87.54, 87.57)},
    "cifar-10": {"fixed": (13.54, 14.28), "adaptive": (58.89, 60.37)},
}
EPSILONS = {
    "mnist": (0.1, 0.2, 0.3, 0.5, 0.7),
    "fashion-mnist": (1.0, 2.0, 3.0, 6.0, 8.0, 10.0),
    "cifar-10": (1.0, 2.0, 3.0, 5.0, 7.0),
}
#: beside the headline's
CLIENTS = {"mnist": (10, 20, 50, 200), "fashion-mnist": (20, 50, 100, 400), "cifar-10": (50, 100, 200, 1000)}
FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
FIGURE_3 = {"fashion-mnist": "At epsilon 4, as the headline; the paper's Figure 3 is at 5."}  #: notes on its points
AXES = {
    "epsilon": "claimed epsilon of one weight in one upload, against the server",
    "clients": "clients",
    "fraction": "fraction of the clients in a round",
}
RADII = (0.01, 0.05, 0.1, 0.2, 0.5)
RADIUS_PLOT = "CIFAR-10 over the radius of a fixed range"


def _headline(data: str) -> tuple[Experiment, Experiment]:
    n, epsilon, figure, loss = HEADLINES[data]
    what = f"{TITLES[data]}, n = {n}"
    noisy = Experiment(
        f"headline-{data}",
        f"{what}, epsilon {epsilon:g}",
        f"ldp-fl-{data}",
        quick=QUICK[data],
        figure=figure,
        where="abstract, section 5.2, Figure 5",
        seeds=3,
        priority=1,
        group=f"{TITLES[data]} over epsilon",
        x=epsilon,
        axis=AXES["epsilon"],
        also=((f"{TITLES[data]} over clients", n), (f"{TITLES[data]} over fraction", 1.0)),
        note=NOTES.get(data, ""),
        fitted=data in FITTED,
    )
    plain = Experiment(
        f"headline-{data}-noise-free",
        f"{what}, without noise",
        f"ldp-fl-{data}",
        NOISE_FREE,
        QUICK[data],
        figure=round(figure + loss, 2),
        where="section 1, Figure 5",
        seeds=3,
        priority=1,
        derived=f"{figure} plus the stated loss, {loss}",
        note=f"The paper states the loss, {loss} points, and not this accuracy: the figure is the sum, not counted.",
        fitted=data in FITTED,
    )
    return noisy, plain


def _batch_norm() -> tuple[Experiment, ...]:
    """CIFAR-10's headline with another reading of "a small VGG", chosen on examples set aside."""
    batch = ("model.options.norm=batch", "model.buffers=local")

    def beside(of: Experiment, id: str, *overrides: str) -> Experiment:
        reading = replace(
            of,
            quick=(*QUICK["cifar-10"], "model.options.norm=batch"),
            where="another reading",
            note="Batch norm in place of group norm. Its statistics stay with the clients; the common model is scored "
            "with those of the test images, 1,000 at a time. Chosen on examples set aside.",
            group="",
            x=None,
            also=(),
        )
        return _instead(reading, id, "batch norm", overrides)

    noisy, plain = _headline("cifar-10")
    five, ten = (each for each in _tables() if each.id.startswith("table-1-cifar-10-adaptive"))
    same = beside(ten, f"{ten.id}-batch-norm", *ten.overrides, *batch, *DIRECT)
    return (
        beside(noisy, "cifar-10-batch-norm", *batch, *DIRECT),
        beside(plain, "cifar-10-batch-norm-noise-free", *batch, *NOISE_FREE),
        beside(five, f"{five.id}-batch-norm", *five.overrides, *batch, *DIRECT),
        replace(same, same_run="cifar-10-batch-norm"),
    )


def _loss(data: str) -> Gain:
    """What noise costs, which the paper states beside the accuracy with it."""
    n, epsilon, _, loss = HEADLINES[data]
    noisy, plain = _headline(data)
    what = f"{TITLES[data]}, n = {n}, epsilon {epsilon:g}: points lost to noise"
    return Gain(f"loss-{data}", what, ((plain.id, noisy.id),), loss, "section 1", data in FITTED, noisy.id)


def _instead(of: Experiment, id: str, name: str, overrides: tuple[str, ...]) -> Experiment:
    """The same figure, with something that the paper leaves unsaid taken otherwise."""
    return replace(of, id=id, what=f"{of.what}, {name}", overrides=overrides, instead=(of.id, name))


def _table_1(data: str, kind: str, epsilon: float, figure: float) -> Experiment:
    recipe = f"ldp-fl-{data}" if (kind == "adaptive") == (data == "cifar-10") else f"ldp-fl-{data}-{kind}"
    return Experiment(
        f"table-1-{data}-{kind}-{epsilon:g}",
        f"{TITLES[data]}, {kind} range, epsilon {epsilon:g}",
        recipe,
        (f"clients.epsilon={epsilon}",),
        QUICK[data],
        figure=figure,
        where="Table 1",
        seeds=3,
        priority=1,
        also=((RADIUS_PLOT, 1.0),) if recipe == "ldp-fl-cifar-10-fixed" and epsilon == 10.0 else (),
        same_run="headline-cifar-10" if (data, kind, epsilon) == ("cifar-10", "adaptive", 10.0) else "",
    )


def _tables() -> list[Experiment]:
    return [
        _table_1(data, kind, epsilon, figure)
        for data, by_kind in TABLE_1.items()
        for kind, figures in by_kind.items()
        for epsilon, figure in zip((5.0, 10.0), figures, strict=True)
    ]


def _curve(data: str, over: str, key: str, x: float, where: str, *more: str) -> Experiment:
    """One point of a plot whose values are lost; they are run over a direct channel, which changes no accuracy."""
    shown = int(x) if over == "clients" else x
    return Experiment(
        f"{data}-{over}-{x:g}",
        f"{TITLES[data]}, {over} {x:g}",
        f"ldp-fl-{data}",
        (f"{key}={shown}", *DIRECT, *more),
        (*QUICK[data], *([f"split.clients={max(5, shown // 10)}"] if over == "clients" else [])),
        where=where,
        priority=3,
        group=f"{TITLES[data]} over {over}",
        x=x,
        axis=AXES[over],
    )


def _curves() -> list[Experiment]:
    found = []
    for data in TITLES:
        found += [_curve(data, "epsilon", "clients.epsilon", x, "Figure 5 (a-c)") for x in EPSILONS[data]]
        more = (_curve(data, "clients", "split.clients", float(n), "Figure 3") for n in CLIENTS[data])
        found += [replace(point, note=FIGURE_3.get(data, "")) for point in more]
        fraction = "method.selection.kind=fraction"
        found += [_curve(data, "fraction", "method.selection.p", p, "Figure 4", fraction) for p in FRACTIONS]
    return found


def _radius(r: float) -> Experiment:
    return Experiment(
        f"cifar-10-radius-{r:g}",
        f"CIFAR-10, fixed range, r = {r:g}",
        "ldp-fl-cifar-10-fixed",
        (f"method.range.radius={r}", *DIRECT),
        QUICK["cifar-10"],
        where="Figure 5 (d)",
        group=RADIUS_PLOT,
        x=r,
        axis="radius r",
        note='The paper: "around 20 %" whatever r is.',
    )


def _rounds(data: str) -> Experiment:
    return Experiment(
        f"{data}-rounds",
        f"{TITLES[data]}, 40 rounds",
        f"ldp-fl-{data}",
        ("rounds.count=40", *DIRECT),
        QUICK[data],
        where="Figure 4",
        note="The paper plots 10 rounds (MNIST) and 15.",
        curves="Over 40 rounds",
        line=TITLES[data],
    )


def _channel(name: str, settings: tuple[str, ...], claim: str) -> Experiment:
    return Experiment(
        f"mnist-{name}",
        f"MNIST, {name} channel",
        "ldp-fl-mnist",
        settings,
        QUICK["mnist"],
        where="section 4, Figure 2",
        note=f"The model of shuffled parameters, to the last bit: only the statement differs (claimed {claim}).",
    )


#: of 412 rounds, which take long: they were not run again when the server's noise became whole numbers
FLOAT_NOISE = " Run with the server's noise in floating point, before it was whole numbers."


def _geyer(rounds: int, figure: float, multiplier: float) -> Experiment:
    return Experiment(
        f"central-{rounds}",
        f"Central DP (Geyer et al.), n = 100, epsilon 8, {rounds} rounds",
        "central-dp-mnist",
        (f"rounds.count={rounds}", f"method.noise_multiplier={multiplier}"),
        QUICK_CENTRAL,
        figure=figure,
        where="section 5.2",
        note="LDP-FL quotes the figure and the 100 clients. The epsilon is by the accountant of Geyer et al.: add or "
        "remove a client, readers of the model only, delta 1e-3." + (FLOAT_NOISE if rounds == 412 else ""),
    )


GEYER = (_geyer(11, 78.0, 1.0), _geyer(54, 92.0, 1.881), _geyer(412, 96.0, 4.919))


def _geyer_many(rounds: int, clients: int, p: float, multiplier: float, delta: str) -> Experiment:
    """The same figure, read as one of more clients: their code has settings for 100, 1,000 and 10,000."""
    of = next(each for each in GEYER if each.id == f"central-{rounds}")
    settings = (
        f"rounds.count={rounds}",
        f"split.clients={clients}",
        f"method.selection.p={p}",
        f"method.noise_multiplier={multiplier}",
        f"clients.budget.delta={delta}",
        "training.optimizer.lr=0.1",
    )
    reading = replace(
        of,
        quick=(*QUICK_CENTRAL, "split.clients=100"),
        where="another reading",
        seeds=3 if clients == 1000 else 1,
        note=f"{p * clients:g} clients a round and delta {delta}, as in their published code; the noise is that for "
        f"epsilon 8. Clients have {60_000 // clients} images each; theirs have 500, and {clients // 100} clients the "
        "same. The learning rate was chosen on examples set aside, with 1,000 clients."
        + (FLOAT_NOISE if rounds == 412 else ""),
    )
    other = _instead(reading, f"{of.id}-{clients}-clients", f"n = {clients:,}", settings)
    return replace(other, what=of.what.replace("n = 100", f"n = {clients:,}"))


def _privunit(data: str, epsilon: int) -> Experiment:
    return Experiment(
        f"privunit-{data}",
        f"PrivUnit on updates (Bhowmick et al.), {TITLES[data]}, epsilon {epsilon}",
        f"ldp-fl-{data}-privunit",
        quick=QUICK[data],
        where="section 5.2",
        note="Neither paper states an accuracy. The epsilon is taken for a client's total, over all its reports. It "
        "holds for real numbers. Run with noise of 32-bit floats, whose last digits told which values were zero.",
        formerly=("clients.budget.basis=proven",),
    )


EXPERIMENTS = (
    *(experiment for data in TITLES for experiment in _headline(data)),
    *_batch_norm(),
    *_tables(),
    *(_rounds(data) for data in TITLES),
    *(_radius(r) for r in RADII),
    _channel("direct", DIRECT, "d T eps"),
    _channel("model-shuffled", ("method.channel.granularity=model",), "d eps"),
    *GEYER,
    _geyer_many(54, 1000, 0.1, 0.818, "1e-5"),
    _geyer_many(412, 10_000, 0.03, 0.777, "1e-6"),
    Experiment(
        "central-proven",
        "Central DP, n = 100, epsilon 8, 11 rounds, constant clip",
        "central-dp-mnist",
        (
            "method.clip=1.0",
            "method.noise_multiplier=",
            "method.target={ epsilon = 8.0, delta = 1e-3 }",
            "clients.budget.basis=proven",
        ),
        QUICK_CENTRAL,
        where="not in the paper",
        note="Proven for a client exchanged for another, against readers of the model; nothing against the server.",
    ),
    _privunit("mnist", 500),
    _privunit("cifar-10", 5000),
    Experiment(
        "mnist-adaptive-1",
        "MNIST, adaptive range, epsilon 1",
        "ldp-fl-mnist-adaptive",
        ("clients.epsilon=1.0", *DIRECT),
        QUICK["mnist"],
        where="not in the paper",
        note="A range from the smallest to the largest noisy mean feeds on its own noise and widens in every round.",
    ),
    Experiment(
        "mnist-quantile-1",
        "MNIST, adaptive range by quantiles, epsilon 1",
        "ldp-fl-mnist-adaptive",
        ("clients.epsilon=1.0", "method.range.quantile=0.9", *DIRECT),
        QUICK["mnist"],
        where="not in the paper",
        note="Nine tenths of the noisy means: the remedy.",
    ),
    *_curves(),
)

RANGES = Gain(
    "range-cifar-10",
    "CIFAR-10, epsilon 10: points gained by an adaptive range",
    (("table-1-cifar-10-adaptive-10", "table-1-cifar-10-fixed-10"),),
    45.0,
    "section 5.4",
)

GAINS = (*(_loss(data) for data in TITLES), RANGES)

ON_PAGE = (
    "headline-mnist", "headline-fashion-mnist", "headline-cifar-10",
    "table-1-fashion-mnist-adaptive-5", "table-1-cifar-10-fixed-10", "table-1-cifar-10-adaptive-5",
    "central-11", "central-54", "central-412", "loss-mnist", "range-cifar-10",
)  # fmt: skip
IN_OVERVIEW = {
    "headline-mnist": "MNIST",
    "headline-fashion-mnist": "Fashion-MNIST",
    "headline-cifar-10": "CIFAR-10",
}
