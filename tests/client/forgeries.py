"""What somebody who does not hold the coordinator's key may try, with everything else that travels in its hands."""

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.recipe import Recipe
from sordino.wire.messages import Plan
from sordino.wire.signing import Author, Envelope, SigningKey, bits
from tests.client.people import KEY, signed

_STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(reversed(range(32))))
STRANGER = SigningKey(_STRANGER, Author(_STRANGER.public_key().public_bytes_raw()))  #: who takes part, and no more


def forged(plan: Plan, elsewhere: Plan, given: Recipe | None = None) -> dict[str, bytes]:
    """Messages for the step `report` in the place of this plan of a recipe; `elsewhere` is another federation's of the
    same key."""
    genuine = Envelope.decode(signed(plan, given=given))
    apart = KEY.envelope("report", plan, genuine.terms, [1, 2], plan.encode())  # for others
    other = replace(plan, arrays={name: array + 1 for name, array in plan.arrays.items()})
    return {
        "without an envelope": plan.encode(),
        "signed by another key": signed(plan, key=STRANGER, given=given),
        "signed after a rotation of its own": signed(plan, key=STRANGER.rotated(), given=given),
        "of another federation": signed(elsewhere),
        "of another federation, under this one's name": replace(
            Envelope.decode(signed(elsewhere)), federation=plan.federation
        ).encode(),
        "with the round changed": replace(genuine, round=plan.round + 1).encode(),
        "with the plan's digest changed": replace(genuine, plan=other.digest).encode(),
        "with another plan": replace(genuine, message=other.encode(), plan=other.digest).encode(),
        "for another step": signed(plan, "prepare", given=given),
        "for other clients": apart,
        "for more clients than were asked": replace(Envelope.decode(apart), clients=bits([0, 1, 2])).encode(),
        "with the terms changed": replace(genuine, terms=bytes(32)).encode(),
        "without a signature": replace(genuine, signature=bytes(64)).encode(),
        "cut off": signed(plan)[:80],
    }


__all__ = ["STRANGER", "forged"]
