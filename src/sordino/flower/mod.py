"""A mechanism and a ledger for a Flower app that knows nothing of either: one line at the clients, one at the server.

    app = ClientApp(mods=[local_privacy(TwoPoint(1.0, Box(0.0, 0.1)), "budgets")])             in the client's app
    strategy = decoded(FedAvg(), TwoPoint(1.0, Box(0.0, 0.1)))                                 in the server's app

Of a reply to `train` the mod takes the model, as its change from the arrays that came (or as it is), clips it to the
mechanism's domain, randomises it, writes the release and its bytes into the ledger, and only then lets the bytes go.
Whatever else is in a reply stays at the client: sample counts, losses and other metrics leave only if they are named,
and then as what they are, releases without protection. Arrays that are not of real numbers (counters) do not leave.

The app's code computes in the node's process. Where it ends the process, hangs or takes all memory, the server gets no
reply. So the loss of a reply is `Infinite`, and `of_mechanism` says what it would be if the app did none of this.

The mod is part of the app, and the server hands out the app: this protects in honest apps only (docs/flower-mod.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.flower import require
from sordino.flower.parcel import ModelArrays, Parcel, Sends, fingerprint, only_arrays, require_sends
from sordino.flower.privacy_mod import Mod, Next, PrivacyMod, Where, log, name_of, named_metrics, reply_of
from sordino.mechanisms.interface import Mechanism
from sordino.privacy.guarantee import Adjacency, Guarantee, Infinite, Release
from sordino.privacy.ledger import ReportKey
from sordino.randomness import Keystream

require()

from flwr.app import Context, Message, RecordDict  # noqa: E402 (after what says that it is missing)

Float32s = NDArray[np.float32]

UNCONTAINED = (
    "the app's own code computes in the node's process, and one record at which it ended that process, hung or took "
    "all memory would leave the server without a reply: let `sordino client` train with parts that Sordino ships"
)


def local_privacy(
    mechanism: Mechanism,
    ledger: Where,
    *,
    dataset: str = "records",
    metrics: Iterable[str] = (),
    sends: Sends = "update",
) -> Mod:
    """A mod for `ClientApp(mods=[...])`; it must be the first of them, so that nothing is added after it.

    `ledger` is the owner's: a file, or a folder with one for each node (`sordino ledger budget PATH DATASET --epsilon E
    --nodes N` makes it). Relative paths are looked for in ~/.sordino/ledgers, and an owner may name another in the
    node's configuration (`ledger_place`). `metrics` names what may leave unprotected: each needs the owner's consent as
    well (`sordino ledger consent PATH DATASET --unproven "metric NAME"`). So does the model ("model update", or "model
    weights"): nothing is proven of a reply while the app can end its process.
    """
    if not isinstance(mechanism, Mechanism) or mechanism.clients is not None:
        raise InvalidInput("local_privacy needs a mechanism with parameters for one client, such as TwoPoint(1.0)")
    require_sends(sends)
    return LocalPrivacy(ledger, dataset, named_metrics(metrics), mechanism, sends)


@dataclass(frozen=True)
class LocalPrivacy(PrivacyMod):
    """The mod itself; `local_privacy` makes one."""

    mechanism: Mechanism
    sends: Sends

    def release(self, key: ReportKey, values: int) -> Release:
        """The randomised model: the mechanism's claim, and no proof, as the app decides whether a reply leaves."""
        what = "model update" if self.sends == "update" else "model weights"
        guarantees, claim = self.of_mechanism(values), self.mechanism.claim(values=values)
        found = Release(f"{name_of(key)}/{what}", self.dataset, what, guarantees, claim)
        unproven = all(isinstance(own.loss, Infinite) for own in guarantees)
        return found if unproven else found.without_proof(UNCONTAINED)

    def of_mechanism(self, values: int) -> tuple[Guarantee, ...]:
        """What the mechanism's output reveals, as long as the app keeps no reply from leaving."""
        sides = (Adjacency.CLIENT, Adjacency.COORDINATE)
        return tuple(self.mechanism.guarantee(adjacency, values=values) for adjacency in sides)

    def draw(self, message: Message, context: Context, call_next: Next, model: ModelArrays) -> Callable[[], Parcel]:
        """Randomise what the app trained, with a fresh key."""
        vector, metrics = self._answer(message, context, call_next, model)

        def draw() -> Parcel:
            output = self.mechanism.randomize(vector, Keystream.fresh()).output
            made = fingerprint(self.mechanism, model.values)
            return Parcel(self.mechanism.encode(output)[0], made, self.sends, metrics)

        return draw

    def content(self, parcel: Parcel, model: ModelArrays | None) -> RecordDict:
        """The bytes as they are: the server's `decoded` reads them."""
        return parcel.content()

    def _answer(
        self, message: Message, context: Context, call_next: Next, model: ModelArrays
    ) -> tuple[Float32s, dict[str, float]]:
        """The vector to randomise and the metrics that may leave; of training that failed, "no change" and none.

        A reply without the message's arrays, or with others, is such a failure: to decline it would tell of the data.
        """
        after = before = model.vector()
        if not np.isfinite(before).all():
            raise InvalidInput("the message holds numbers that are not finite, from which no change can be told")
        metrics: dict[str, float] = {}
        reply = reply_of(message, context, call_next)
        if reply is not None:
            try:
                after = model.vector(only_arrays(reply.content, "a reply to train"))
                if not np.isfinite(after).all():
                    raise InvalidInput("training gave values that are not finite")
                metrics = self.allowed(reply)
            except Exception as error:
                log.error("the report says 'no change': %s", error)
                after = before
        vector = after - before if self.sends == "update" else after
        largest = float(np.finfo(np.float32).max)
        return np.clip(vector, -largest, largest).astype(np.float32), metrics


__all__ = ["LocalPrivacy", "local_privacy"]
