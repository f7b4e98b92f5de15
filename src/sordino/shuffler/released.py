"""What a statement may say of reports that went through the shuffler's envelopes."""

from __future__ import annotations

import math
from dataclasses import replace

from sordino.mechanisms import TwoPoint
from sordino.privacy.accountant import bit_epsilon
from sordino.privacy.guarantee import Adjacency, Guarantee, Pure, Release, check_count, shuffled


def behind_service(release: Release, mechanism: TwoPoint, values: int, group: int, crowd: int) -> Release:
    """The same release with what holds against a server behind a shuffler that mixes at least `crowd` reports.

    `crowd` is of clients of equal epsilon, who alone look alike. Envelopes of one value are the shuffled channel of a
    simulation, and their guarantee is the same. g values in one envelope stay together: one message of g * epsilon, for
    which no amplification is stated.
    """
    group, crowd = check_count("group", group), check_count("crowd", crowd)
    if group == 1:
        from sordino.methods.ldp_fl import behind_shuffler

        return behind_shuffler(release, mechanism, values, "parameter", crowd)
    each = bit_epsilon(int(mechanism.t_min[0]))
    basis = (
        f"bits in sealed groups of {group}, each of them one linked message of {group} times a bit's epsilon, mixed "
        f"among {crowd} clients: without amplification"
    )
    linked = [
        Guarantee(shuffled(crowd), adjacency, loss, basis)
        for adjacency, loss in (
            (Adjacency.CLIENT, Pure(group * each, math.ceil(values / group))),
            (Adjacency.COORDINATE, Pure(each)),
        )
    ]
    return replace(release, guarantees=(*release.guarantees, *linked), claimed=None)


__all__ = ["behind_service"]
