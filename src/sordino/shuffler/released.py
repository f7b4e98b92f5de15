"""What a statement may say of reports that went through the shuffler's envelopes."""

from __future__ import annotations

from sordino.mechanisms.one_bit import OneBit
from sordino.privacy.guarantee import Release, check_count


def behind_service(release: Release, mechanism: OneBit, values: int, group: int, crowd: int) -> Release:
    """The same release with what holds against a server behind a shuffler that mixes at least `crowd` reports.

    `crowd` is of clients of equal epsilon, who alone look alike. Envelopes of one value are the shuffled channel of a
    simulation, and their guarantee is the same. g values in one envelope stay together: one message of g * epsilon, for
    which no amplification is stated.
    """
    from sordino.methods.ldp_fl import behind_envelopes  # not before it is needed: it brings PyTorch along

    return behind_envelopes(release, mechanism, values, check_count("group", group), check_count("crowd", crowd))


__all__ = ["behind_service"]
