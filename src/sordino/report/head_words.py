"""What to expect of a linear head on public features, in words: the sentences around a `HeadPlan`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION
from sordino.report.words import capital, count, counted, decimal, figure, upper

if TYPE_CHECKING:
    from sordino.runs.head_plan import HeadPlan, SumPlan


def sentences(plan: HeadPlan) -> tuple[str, ...]:
    """What a run sends, what is proven of it, and how loud its noise is: for the first lines of a run."""
    return tuple(f"{capital(words)}." for words in (*_sent(plan), *_proven(plan), *_noise(plan)))


def details(plan: HeadPlan) -> tuple[str, ...]:
    """How noise and grids follow from the budget: for a plan."""
    said = (*_proven(plan), *_ledger(plan), *_trust(plan), *_moments(plan), *_grid(plan))
    return tuple(f"{capital(words)}." for words in said)


def _sent(plan: HeadPlan) -> Iterator[str]:
    masked = ", masked for the secure sum" if plan.budgeting.shares > 1 else ""
    *first, gradient = plan.sums
    for own in first:
        yield f"in round 1, each of {_silos(plan)} sends {own.what}: {_size(own)}{masked}"
    rounds = counted(gradient.times, "later round" if first else "round")
    yield f"in {rounds}, each of {_silos(plan)} sends the {gradient.what}: {_size(gradient)}{masked}"


def _silos(plan: HeadPlan) -> str:
    return counted(plan.question.clients, "silo")


def _size(own: SumPlan) -> str:
    return f"{counted(own.values, 'value')}, {count(own.report_bytes)} bytes"


def _proven(plan: HeadPlan) -> Iterator[str]:
    asked = plan.question
    rounds = asked.gradients + (plan.budgeting.moments is not None)
    everything = "the one round" if rounds == 1 else f"all {rounds} rounds together"
    if plan.unproven:
        yield f"{everything}: nothing is proven ({plan.unproven})"
        return
    terms = f"{asked.adjacency}, against {asked.adversary}"
    worth = ": no meaningful protection" if plan.proven > NO_MEANINGFUL_PROTECTION else ""
    yield (f"{everything}: proven epsilon {upper(plan.proven)} at delta {upper(asked.spec.delta)} ({terms}){worth}")
    if plan.budgeting.shares > 1:
        yield f"against whoever sees a silo's own reports: proven epsilon {upper(plan.alone)}"
    for epsilon, scale in zip(asked.strengths[:-1], plan.scales, strict=False):
        yield f"silos of epsilon {epsilon:g} send sums of vectors that are {scale:.3g} times as long"


def _ledger(plan: HeadPlan) -> Iterator[str]:
    if plan.unproven:
        return
    goal = "that" if plan.question.ledger else "the statement (with clients.budget in a recipe, for the ledger)"
    yield f"a client's ledger counts {upper(plan.ledger)} for them; the noise is planned for {goal}"


def _noise(plan: HeadPlan) -> Iterator[str]:
    gradient, of = plan.sums[-1], "records" if plan.question.spec.protects == "record" else "silos"
    chosen = "as long as the noise allows" if plan.question.spec.server_lr is None else "as the recipe says"
    clip = plan.question.spec.clip
    yield (
        f"the mean gradient over all {of} is at most {clip:g} long, and its noise {gradient.mean_norm:.3g} "
        f"({gradient.mean_noise:.2g} in each value); a step is {decimal(plan.step)} times it, {chosen}"
    )


def _trust(plan: HeadPlan) -> Iterator[str]:
    asked, shares = plan.question, plan.budgeting.shares
    if shares == 1:
        yield "every silo adds all of the noise, since the server sees single reports"
        return
    least = asked.spec.channel.least(asked.clients)
    yield (
        f"the noises of {shares} honest silos add up: of {asked.clients}, at least {least} are in every sum, and "
        f"{least - shares} of them may side with the server"
    )


def _moments(plan: HeadPlan) -> Iterator[str]:
    if plan.whitening_noise is None:
        yield "there are no second moments: records are not whitened"
        return
    moments = plan.question.spec.moments
    how = "as the rule has it" if moments.share is None else "as the recipe says"
    yield (
        f"second moments take {figure(plan.budgeting.share)} of the budget, {how}; their noise has a spectral norm of "
        f"about {plan.whitening_noise:.2g}, beside a floor of {moments.floor:g}"
    )


def _grid(plan: HeadPlan) -> Iterator[str]:
    found = plan.budgeting
    yield (
        f"a record is at most {count(found.limit)} steps long before it is whitened and {found.row} after, a residual "
        f"{found.residual}: a gradient is clipped at {count(found.row * found.residual)} steps, which stand for "
        f"{plan.question.spec.clip:g}"
    )
    yield from _noise(plan)


__all__ = ["details", "sentences"]
