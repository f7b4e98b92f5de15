"""What attacks found, in words: the same for the command line and the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.privacy.leaks import Leak, Variant, attack_order
from sordino.report.attack_file import figure_of
from sordino.report.words import capital, count, listed

CAVEAT = (
    "An attack is a lower bound on what leaks: a better attacker may find more, and an attack that fails proves "
    "nothing. Only the bound is proven."
)
DEED = "cases the attack gets right"  #: of an attack that has no words for it
ORDER: tuple[Variant, ...] = ("bare", "run", "proven")  #: from nothing to what is proven


def variant_words(leak: Leak) -> str:
    """Which reports were attacked."""
    match leak.variant:
        case "bare":
            return "without protection"
        case "run":
            return "this run"
        case "proven":
            return f"a proven recipe{_at_epsilon(leak)}"


def _within(leak: Leak) -> str:
    """The same within a sentence."""
    match leak.variant:
        case "bare":
            return "without protection"
        case "run":
            return "in this run"
        case "proven":
            return f"with a proven recipe{_at_epsilon(leak)}"


def _at_epsilon(leak: Leak) -> str:
    epsilon = figure_of(leak, "epsilon")
    return "" if epsilon is None else f" at epsilon {epsilon:g}"


def ordered(leaks: Sequence[Leak]) -> list[Leak]:
    """By attack, then by the attacker's method, each from the one without protection on."""
    hows = list(dict.fromkeys(leak.how for leak in leaks))
    return sorted(leaks, key=lambda one: (attack_order(one.attack), hows.index(one.how), ORDER.index(one.variant)))


def by_method(leaks: Sequence[Leak]) -> list[list[Leak]]:
    """The variants of each attack and method together: the figures of different methods are no match for each other."""
    groups: dict[tuple[str, str], list[Leak]] = {}
    for leak in ordered(leaks):
        groups.setdefault((leak.attack, leak.how), []).append(leak)
    return list(groups.values())


def title(leak: Leak) -> str:
    """`Membership (likelihood ratio)`."""
    return f"{capital(leak.attack)} ({leak.how})"


def headline(leaks: Sequence[Leak]) -> str | None:
    """The strongest reconstruction from this run's reports, beside that from a proven recipe's; None without any."""
    rebuilt = [leak for leak in leaks if leak.attack == "reconstruction" and leak.variant == "run"]
    if not rebuilt:
        return None
    best = max(rebuilt, key=lambda leak: leak.share.interval()[0])
    hits = [f"{_hits(best, alone=False)} records in this run"]
    hits += [f"{_hits(leak, alone=False)} {_within(leak)}" for leak in leaks if leak.variant == "proven"]
    return f"The strongest attack identifies {listed(hits)}."


def sentences(leaks: Sequence[Leak]) -> list[str]:
    """A few for each attack and method: what it got in every variant, beside guessing and the bound."""
    return [f"{title(own[0])}: {_results(own)}" for own in by_method(leaks)]


def left_out_words(left_out: str) -> str:
    """`name: why`, the form in which `attacks.json` has it, as a sentence."""
    name, _, why = left_out.partition(": ")
    return f"No {name} attack: {why}."


def _results(leaks: Sequence[Leak]) -> str:
    """Variants with the same words together: others have, for instance, more candidates."""
    alike: dict[str, list[Leak]] = {}
    for leak in leaks:
        alike.setdefault(leak.deed or DEED, []).append(leak)
    results = " ".join(_result(deed, own) for deed, own in alike.items())
    return " ".join(
        [results[0].lower() + results[1:], *(_bound_words(leak) for leak in leaks if leak.variant != "bare")]
    )


def _result(deed: str, leaks: Sequence[Leak]) -> str:
    same = len({leak.share.trials for leak in leaks}) == 1
    hits = [f"{_hits(leak, alone=same)} {_within(leak)}" for leak in leaks]
    of = count(leaks[0].share.trials) if same else "the"
    return f"Of {of} {deed} {listed(hits)}. Guessing gets {_guessing(leaks)}."


def _guessing(leaks: Sequence[Leak]) -> str:
    """What guessing gets, with as many false alarms in each variant where there are any."""
    shares = [share_words(leak.chance) for leak in leaks]
    if len(set(shares)) == 1:
        return shares[0]
    return listed([f"{share} {_within(leak)}" for leak, share in zip(leaks, shares, strict=True)])


def _hits(leak: Leak, *, alone: bool) -> str:
    return count(leak.share.hits) if alone else f"{count(leak.share.hits)} of {count(leak.share.trials)}"


def _bound_words(leak: Leak) -> str:
    whose = "this run" if leak.variant == "run" else f"a proven recipe{_at_epsilon(leak)}"
    if leak.bound is None:
        return f"No bound is proven for {whose}."
    if leak.bound >= 1:
        return f"The proof for {whose} excludes nothing."
    if at_most(leak.bound) == at_most(1.0):
        return f"The proof for {whose} excludes next to nothing."
    alarms = " at the false alarms measured" if leak.curve else ""
    return f"At most {at_most(leak.bound)} is proven possible for {whose}{alarms}."


# --- figures ----------------------------------------------------------------------------------------------------------


def share_words(share: float) -> str:
    """A share as a percentage: one decimal, or two digits where it is small."""
    return f"{100 * share:.2g} %" if 0 < share < 0.01 else f"{100 * share:.1f} %"


def at_most(bound: float | None) -> str:
    """The most that is proven possible, rounded up."""
    if bound is None:
        return "no proof"
    step = 1000 if bound >= 0.01 else 100_000
    return f"{min(100.0, 100 * math.ceil(bound * step - 1e-9) / step):.{1 if step == 1000 else 3}f} %"


def found_words(leak: Leak) -> str:
    """`31 of 32, 96.9 % (83.8 to 99.9 %)`."""
    low, high = leak.share.interval()
    hits = f"{count(leak.share.hits)} of {count(leak.share.trials)}"
    return f"{hits}, {share_words(leak.share.rate)} ({100 * low:.1f} to {100 * high:.1f} %)"


__all__ = [
    "CAVEAT",
    "ORDER",
    "at_most",
    "by_method",
    "found_words",
    "headline",
    "left_out_words",
    "ordered",
    "sentences",
    "share_words",
    "title",
    "variant_words",
]
