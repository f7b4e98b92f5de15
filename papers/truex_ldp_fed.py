"""The experiments of LDP-Fed (Truex et al. 2020): Table 1, Figure 3, and what the paper leaves open."""

from __future__ import annotations

import math

from papers.experiments import Experiment
from sordino.errors import InvalidInput

RECIPE = "ldp-fed-fashion-mnist"
QUICK = ("data.train_limit=200", "data.test_limit=200", "split.clients=20", "evaluation.every=20")
TABLE_1 = {1: 86.85, 2: 86.20, 4: 86.89, 5: 86.93, 10: 86.30, 16: 85.28}


def equivalent_epsilon(alpha: float, size: int) -> float:
    """The epsilon that CLDP's conversion [12] gives for alpha on `size` ordered values: equal posterior confidence.

    The exponential mechanism leaves an adversary with a uniform prior the largest posterior where value and output are
    the same end of the range. With lambda = e^(-alpha/2) and n = size - 1, Z(k) = sum over z of lambda^|k - z|:

        MPC = 1/Z(0) / sum_k lambda^k / Z(k),      epsilon = ln(n MPC / (1 - MPC))     (of randomised response)

    It depends on the prior and bounds no ratio of probabilities: it is here to compare with the paper alone.
    """
    if not (0 < alpha < math.inf) or size < 2:
        raise InvalidInput(f"the conversion needs alpha > 0 and at least two values, got {alpha!r} and {size!r}")
    rate, n = alpha / 2, size - 1
    terms = min(n, math.ceil(45 / rate))  # beyond, a term is below 1e-19 of the first
    if terms > 10**7:
        raise InvalidInput(f"alpha {alpha:g} on {size} values takes {terms:,} terms: give a larger alpha")
    step = -math.expm1(-rate)

    def weight(k: int) -> float:
        """Z(k) (1 - lambda) = 1 + lambda - lambda^(k+1) - lambda^(n-k+1)."""
        return 2 - step - math.exp(-rate * (k + 1)) - math.exp(-rate * (n - k + 1))

    likelihoods = math.fsum(math.exp(-rate * k) / weight(k) for k in range(terms + 1))
    confidence = 1 / weight(0) / likelihoods
    return math.log(n * confidence / (1 - confidence))


CLAIMS = (
    "Claimed is alpha of condensed LDP, which is no epsilon: it bounds the ratio of probabilities by e^(alpha d) at "
    "distance d."
)
CODES = 2 * 10**10 + 1  #: the whole numbers from -c 10^rho to c 10^rho with c = 1 and rho = 10
POSTERIOR = round(equivalent_epsilon(1.0, CODES), 2)  #: 23.6
DIRECT = 1e10  #: alpha c 10^rho


def _cycles(count: int, figure: float) -> Experiment:
    return Experiment(
        f"table-1-cycles-{count}",
        f"alpha-CLDP-Fed, {count} cycle{'s' if count > 1 else ''}",
        RECIPE,
        (f"method.scope.cycles={count}",),
        (*QUICK, f"rounds.count={max(10, 5 * count)}"),
        figure=figure,
        where="Table 1" if count > 1 else "Table 1, Figure 3",
        seeds=3,
        priority=1,
        group="alpha-CLDP-Fed over cycles",
        x=float(count),
        axis="cycles",
    )


def _precision(scope: str, recipe: str, precision: int) -> Experiment:
    return Experiment(
        f"precision-{scope}-{precision}",
        f"{scope}, rho = {precision}",
        recipe,
        (f"method.mechanism.precision={precision}",),
        (*QUICK, "rounds.count=10"),
        where="section 4.1 (rho is not stated)",
        priority=3,
        group=f"{scope} over rho",
        x=float(precision),
        axis="rho, decimals of a value",
    )


PRIVATE = {"dpsgd": "DP-SGD at each participant", "hybrid": "Hybrid-One"}
TARGETS = {
    "one": (
        1.0,
        "the noise is planned for epsilon 1 of a record more or less, in all rounds together: against the server for "
        "DP-SGD, against the sum for Hybrid-One.",
    ),
    "posterior": (
        POSTERIOR,
        "the epsilon at which randomised response leaves the same posterior as alpha = 1 does on 2 * 10^10 + 1 values: "
        "CLDP's own conversion, which the paper refers to.",
    ),
    "direct": (DIRECT, "alpha c 10^rho, what alpha = 1 amounts to as plain local privacy: noise that is hardly there."),
}


def _private(method: str, named: str) -> Experiment:
    target, note = TARGETS[named]
    return Experiment(
        f"{method}-{named}",
        f"{PRIVATE[method]}, epsilon {target:g}",
        f"{RECIPE}-{method}",
        (f"method.target.epsilon={target}",),
        (*QUICK, "rounds.count=2"),
        where="Figure 3 (values lost)",
        note=note,
    )


EXPERIMENTS = (
    *(_cycles(count, figure) for count, figure in TABLE_1.items()),
    Experiment(
        "single-layer",
        "CLDP-Single-Layer",
        f"{RECIPE}-single-layer",
        quick=(*QUICK, "rounds.count=10"),
        figure=84.89,
        where="section 4.1, Figure 3",
        seeds=3,
        priority=1,
    ),
    Experiment(
        "basic",
        "CLDP-Basic",
        f"{RECIPE}-basic",
        quick=(*QUICK, "rounds.count=10"),
        figure=10.0,
        said="below 10",
        where="section 4.1, Figure 3",
        seeds=3,
        priority=1,
        also=(("CLDP-Basic over rho", 10.0),),
    ),
    Experiment(
        "non-private",
        "Non-private federated learning",
        f"{RECIPE}-non-private",
        quick=(*QUICK, "rounds.count=10"),
        where="Figure 3 (values lost)",
        seeds=3,
        priority=1,
    ),
    Experiment(
        "smc",
        "SMC: secure sums of ten decimals",
        f"{RECIPE}-smc",
        quick=(*QUICK, "rounds.count=5"),
        where="Figure 3 (values lost)",
        note="The same training as non-private federated learning: nothing is proven about the sums themselves.",
    ),
    Experiment(
        "local",
        "Local learning",
        f"{RECIPE}-local",
        quick=(*QUICK, "rounds.count=3"),
        where="Figure 3 (values lost)",
        note="The mean of 50 participants' own models; random guess is 10.",
    ),
    Experiment(
        "sampling-claimed",
        "alpha-CLDP-Fed, each alpha_i 1/q larger",
        RECIPE,
        ("method.sampling=claimed",),
        (*QUICK, "rounds.count=10"),
        where="section 3, k-client selection",
        note="alpha = sum of q alpha_i with q = 9/50, as the paper has it; no proof supports it.",
    ),
    Experiment(
        "relay",
        "alpha-CLDP-Fed, a relay selects",
        f"{RECIPE}-relay",
        quick=(*QUICK, "rounds.count=10"),
        where="section 3, k-client selection",
        note="All 50 participants send and spend in every round.",
    ),
    Experiment(
        "group-norm",
        "alpha-CLDP-Fed with group norm",
        RECIPE,
        ("model.options.norm=group", "method.scope.cycles=5"),
        (*QUICK, "rounds.count=25"),
        where="not in the paper",
        note="No running statistics at all: the five-cycle setting to compare with.",
    ),
    *(_private(method, named) for method in PRIVATE for named in TARGETS),
    *(_precision("CLDP-Basic", f"{RECIPE}-basic", rho) for rho in (9, 8, 7)),
    *(_precision("alpha-CLDP-Fed", RECIPE, rho) for rho in (9, 8, 7)),
)

ON_PAGE = (*(f"table-1-cycles-{count}" for count in TABLE_1), "single-layer", "basic", "non-private", "dpsgd-one")
IN_OVERVIEW = {"table-1-cycles-5": "Fashion-MNIST, 5 cycles", "basic": "CLDP-Basic"}
