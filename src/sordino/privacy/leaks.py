"""What attacks on a run found: shares with their intervals, beside the most that a proof allows.

An attack is a lower bound on what leaks, never a guarantee: a better attacker may find more. Only the bound is proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from sordino.errors import InvalidInput
from sordino.parts.shipped import SHIPPED

Variant = Literal["run", "bare", "proven"]  #: this run's reports, the same without noise, or those of a proven recipe
VARIANTS: tuple[Variant, ...] = get_args(Variant)

CERTAIN = 1e-6  #: the chance at which a proof is called violated although it holds: a bug is not announced by chance


@dataclass(frozen=True)
class Share:
    """How often an attack was right."""

    hits: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.trials:
            raise InvalidInput(f"of {self.trials} trials an attack cannot have won {self.hits}")

    @property
    def rate(self) -> float:
        """The share; 0 without a trial."""
        return self.hits / self.trials if self.trials else 0.0

    def interval(self, tail: float = 0.025) -> tuple[float, float]:
        """The Clopper-Pearson interval, wrong on each side with a chance of `tail` at most."""
        from scipy.special import betaincinv

        misses = self.trials - self.hits
        low = betaincinv(self.hits, misses + 1, tail) if self.hits else 0.0
        high = betaincinv(self.hits + 1, misses, 1 - tail) if misses else 1.0
        return float(low), float(high)


def attack_order(name: str) -> tuple[int, str]:
    """Where an attack stands in tables: shipped ones in their order, then others by name."""
    shipped = list(SHIPPED["attack"])
    return (shipped.index(name) if name in shipped else len(shipped), name)


def identification_bound(epsilon: float, delta: float, candidates: int) -> float:
    """The largest chance to name the right one of equally likely candidates, any two of them (epsilon, delta)-close.

    Summing P(i | i) <= e^epsilon P(i | j) + delta over all pairs gives S <= e^epsilon (1 - S) / (M - 1) + delta for the
    mean chance S.
    """
    if candidates < 2:
        raise InvalidInput(f"to name one of {candidates} candidates is no attack: give at least 2")
    if epsilon == math.inf:
        return 1.0
    ratio = math.exp(min(epsilon, 700.0)) / (candidates - 1)
    return min(1.0, (ratio + delta) / (1 + ratio))


def membership_bound(epsilon: float, delta: float, false_positives: float) -> float:
    """The largest share of members that can be told at this share of false alarms (Kairouz et al., ICML 2015)."""
    if epsilon == math.inf:
        return 1.0
    grown = math.exp(min(epsilon, 700.0))
    return min(1.0, grown * false_positives + delta, 1 - (1 - delta - false_positives) / grown)


def tail_bound(share: Share, bound: float, together: int) -> float:
    """The most that so many hits, or more, can have where no trial is right with a chance above `bound`.

    Up to `together` of the trials may depend on each other in any way. If n of them win h, then E[e^(s h)] is at most
    1 - b + b e^(s n). The logarithm of that is convex in n and 0 at 0, so that Chernoff's bound of trials / together
    independent trials holds.
    """
    rate = share.rate
    if rate <= bound:
        return 1.0
    if bound <= 0:
        return 0.0
    divergence = rate * math.log(rate / bound)
    divergence += (1 - rate) * math.log((1 - rate) / (1 - bound)) if rate < 1 else 0.0
    return math.exp(-divergence * share.trials / together)


@dataclass(frozen=True)
class Leak:
    """What one attack found in the reports of one variant of a run."""

    attack: str  #: its name
    variant: Variant
    how: str  #: the attacker's method, such as "closed form", "gradient matching" or "likelihood ratio"
    share: Share  #: records identified, members told, clients told apart
    chance: float  #: the share that guessing gets
    bound: float | None = None  #: the largest share that is proven possible; None: nothing is proven about it
    figures: Mapping[str, float] = field(default_factory=dict)  #: such as psnr, ssim, auc, candidates, seconds
    curve: tuple[tuple[float, float], ...] = ()  #: (false positives, true positives), where there is a threshold
    limit: tuple[tuple[float, float], ...] = ()  #: the same, of the most that is proven possible
    originals: tuple[str, ...] = ()  #: pictures as PNG in base64
    pictures: tuple[str, ...] = ()  #: what the attack made of each of these
    seed: int = 1
    #: the most that so many right answers can have under what is proven, where trials are not independent of each other
    likelihood: float | None = None
    deed: str = ""  #: what the attack does to so many, as it follows "of 32": "records the attack identifies"

    @property
    def is_violation(self) -> bool:
        """Whether the attack was right more often than a proof allows, all but certainly: then there is a bug."""
        if self.likelihood is not None:
            return self.likelihood < CERTAIN
        return self.bound is not None and self.share.interval(CERTAIN)[0] > self.bound

    def to_json(self) -> dict[str, Any]:
        """Plain values for `attacks.json`."""
        return asdict(self) | {"interval": list(self.share.interval())}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Leak:
        """What `to_json` wrote."""
        given = {name: value for name, value in kept.items() if name != "interval"}
        for name in ("curve", "limit"):
            given[name] = tuple((float(a), float(b)) for a, b in given.get(name, ()))
        for name in ("originals", "pictures"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given | {"share": Share(**given["share"])})


__all__ = [
    "VARIANTS",
    "Leak",
    "Share",
    "Variant",
    "attack_order",
    "identification_bound",
    "membership_bound",
    "tail_bound",
]  # fmt: skip
