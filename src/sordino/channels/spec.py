"""The tables of channels: what all of them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from sordino.mechanisms.interface import Mechanism
from sordino.mechanisms.one_bit import OneBit
from sordino.methods.upload import PerClass, Tally, Upload
from sordino.parts.tables import Found, Spec, reads
from sordino.privacy.guarantee import Release
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.channels.interface import Channel
    from sordino.channels.secagg import Identity
    from sordino.channels.secure_sum import Members
    from sordino.methods.interface import Method
    from sordino.methods.selection import SelectionSpec
    from sordino.recipe import Recipe


ReleasesOf = Callable[[Plan], Sequence[Sequence[Release]]]  #: plan -> what a report tells, for every class of clients


def first_tally(method: Method) -> Tally:
    """An empty sum for the reports of the first round."""
    return method.tally(method.plan(method.init(), ""))


class ChannelSpec(Spec):
    """How reports travel from clients to the server."""

    uses: ClassVar[frozenset[str]] = frozenset()  #: what a method must offer: bits, sums, lots
    unseen: ClassVar[str] = ""  #: why the server sees no single report; empty where it does
    sums: ClassVar[bool] = False  #: whether clients add up their reports in secret, under keys that they vouch for
    posts: ClassVar[bool] = False  #: whether clients post their reports to a shuffler service, and not to the server
    in_pages: ClassVar[bool] = False  #: whether web pages can send their reports this way
    simulated: ClassVar[bool] = False  #: whether it stands for somebody trusted, whom only a simulation can play

    @abstractmethod
    def build(self, recipe: Recipe, method: Method) -> Channel:
        """The coordinator's side; what can never be collected is refused."""

    def members(self, recipe: Recipe, method: Method, identities: Mapping[int, Identity] | None) -> Members | None:
        """The clients' side, where it has one beyond sending a report."""
        return None

    def simulated_sides(self, recipe: Recipe, method: Method) -> tuple[Channel, Members | None]:
        """Both sides where all clients are simulated."""
        return self.build(recipe, method), self.members(recipe, method, None)

    def releases(self, recipe: Recipe, method: Method) -> ReleasesOf:
        """What a report on a plan tells of its client, with what it is worth behind this channel."""
        return method.releases

    def handed_on(self, asked: int) -> int:
        """How many reports the server gets, at most, where so many clients are asked."""
        return asked


class MixedSpec(ChannelSpec):
    """Reports of bits that somebody mixes before the server gets them."""

    uses: ClassVar[frozenset[str]] = frozenset({"bits"})
    unseen: ClassVar[str] = "behind a shuffler the server sees no whole report"

    @abstractmethod
    def crowds(self, selection: SelectionSpec, upload: Upload) -> tuple[int, ...]:
        """Among how many reports each class's own are mixed in every round: those of equal epsilon, and no others."""

    @abstractmethod
    def guarantee(self, release: Release, crowd: int, mechanism: OneBit) -> Release:
        """The same release with what the paper claims among `crowd` mixed reports, and what is proven there."""

    def releases(self, recipe: Recipe, method: Method) -> ReleasesOf:
        crowds = self.crowds(recipe.method.selection, first_tally(method).upload)

        def mixed(release: Release, crowd: int, mechanism: Mechanism) -> Release:
            return self.guarantee(release, crowd, mechanism) if isinstance(mechanism, OneBit) else release

        def releases(plan: Plan) -> Sequence[Sequence[Release]]:
            found, upload = method.releases(plan), method.tally(plan).upload
            return PerClass(len(found), lambda c: [mixed(r, crowds[c], upload.mechanisms[c]) for r in found[c]])

        return releases

    @reads("method", "split")
    def only_bits_are_shuffled(self, recipe: Recipe) -> Found:
        """What is mixed are bits without a number beside them, of as many clients as are asked."""
        method, kind, at_least = recipe.method, getattr(self, "kind", ""), getattr(self, "at_least", 0)
        asked = method.selection.asked(recipe.number_of_clients)
        if method.mechanism.noise != "points":
            found = f"got {kind} with the mechanism {method.mechanism.label}"
            yield ".kind", f"{found}; allowed only with two-point, whose reports are bits: take direct"
        if method.aggregation.samples:
            found = f"got {method.aggregation.kind}; a shuffled report has no number beside it"
            yield "method.aggregation.kind", f"{found}: take mean"
        if at_least > asked:
            yield ".at_least", f"got {at_least}; allowed: at most {asked}, the clients asked"
