"""What one record may decide beside its own part: how a table is read, and bits of what other records add.

Also the account's Gaussian curve, which must lie above the truth. All of it is checked without chance; the draws beside
it are those of a mechanism, so that the checks run where all others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from sordino.audits.inspection import Enumerated, Subject
from sordino.audits.mechanisms import subject
from sordino.audits.statistics import Check
from sordino.learning import own_data, tasks
from sordino.learning.examples import Normalisation
from sordino.learning.linear_head import TABLE_BITS, LinearHead
from sordino.learning.tables import ClientReading
from sordino.mechanisms import Box, Gaussian
from sordino.mechanisms.cases import DELTA, Specimen
from sordino.privacy import accountant

SHAPE = 200, 64  #: of the draws beside the checks
LINES = 40  #: of a table
#: lines that do not fit, by what is wrong with them: a column, a class, a number, a gap, a mark, another separator
STRANGE = ("0,1", "3,yes,perhaps", "1e999,no,yes", ",no,yes", '3,"no,yes', "3;no;yes", "\0,no,no")
HEADS, WIDTH, STEPS, LONGEST_ROW = 6, 3, 2**17, 256  #: records, features and grid steps of a head, and of a record
#: (mu, epsilon, delta rounded down), from arithmetic with 60 digits; where differences lose the most, and in between
CURVE = (
    (1e-12, 9.25e-12, 1.1866375799253e-33),
    (1e-10, 1.63e-10, 2.16471108116821e-12),
    (1e-9, 2.3e-9, 3.66158469595764e-12),
    (1e-8, 7.5e-9, 1.31166918364029e-9),
    (1e-7, 6.12e-7, 7.28266031097204e-18),
    (0.01, 0.03, 3.87925642213078e-06),
    (0.2681, 1.0, 1.00303136775261e-05),
    (5.0, 30.0, 0.000131326271113373),
)


def one_record() -> list[Subject]:
    """Reading a table, and a linear head with as many classes as it may have."""
    return [_checked("a table's other rows", table), _checked("a linear head of many classes", apart)]


def account() -> list[Subject]:
    """The curve of Gaussian noise."""
    return [_checked("the account's Gaussian curve", curve)]


def _checked(name: str, check: Enumerated) -> Subject:
    honest = subject(Specimen("gaussian", Gaussian.analytic(1.0, DELTA, Box()), SHAPE))
    return replace(honest, name=name, enumerated=(check,))


def table() -> Check:
    """Whether a line that does not fit leaves all other rows of a client's table as they are."""
    rows = [f"{k},{('no', 'yes')[k % 2]},{('no', 'yes')[k % 3 == 0]}" for k in range(LINES)]
    alone, wrong = _read(rows), []
    for line in STRANGE:
        for place in (0, LINES // 2, LINES):
            found = _read([*rows[:place], line, *rows[place:]])
            at = [k for k in range(len(found)) if len(found) == LINES or k != place]  # it may have become a row
            if len(at) != LINES or not np.array_equal(found[at], alone):
                wrong.append(f"{line!r} in line {place} changes {LINES - len(at) or 'other'} rows")
    sees = "one line of a table that moves any value or label of another"
    return Check("neighbours", 0.0 if wrong else 1.0, sees, "; ".join(wrong[:3]))


def _read(rows: Sequence[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """`[n, 2]`: the feature and the label of each row that was read."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_text("\n".join(["age,smoker,outcome", *rows, ""]), encoding="utf-8")
        found = own_data.from_csv(
            str(path), test=None, label="outcome", classes=("no", "yes"), normalisation=Normalisation(),
            features=("age",), apart=ClientReading((1,)),
        )  # fmt: skip
    return np.column_stack([found.train.x.reshape(len(found.train), -1), found.train.y]).astype(np.float64)


def apart() -> Check:
    """Whether a record adds the same to a sum of gradients alone and beside others, with the most classes."""
    classes = tasks.MOST_CLASSES
    generator = torch.Generator().manual_seed(1)
    head = LinearHead(WIDTH, classes, bias=True)
    x, y = torch.randn(HEADS, WIDTH, generator=generator), torch.randint(classes, (HEADS,), generator=generator)
    weights = head.weights(torch.randn(head.size, generator=generator) * 1e-3)  # scores alike: the largest sums

    def parts(places: slice) -> torch.Tensor:
        return head.parts(weights, head.rounded(x[places], STEPS), y[places], 1.0, STEPS // LONGEST_ROW)

    together = parts(slice(None))
    wrong = [f"record {k}" for k in range(HEADS) if not torch.equal(parts(slice(k, k + 1))[0], together[k])]
    if classes << TABLE_BITS > 2**53:
        wrong.append(f"{classes:,} exponentials of {TABLE_BITS} bits may be rounded")
    sees = "one record that adds another number beside others, or a sum of exponentials that may be rounded"
    return Check("neighbours", 0.0 if wrong else 1.0, sees, "; ".join(wrong[:3]))


def curve() -> Check:
    """Whether delta is never below the truth."""
    wrong = [
        f"mu {mu:g}, epsilon {epsilon:g}: {found:.16g}, and {least:.16g} is true"
        for mu, epsilon, least in CURVE
        if (found := accountant.gaussian_delta(mu, epsilon)) < least
    ]
    return Check("guarantee", 0.0 if wrong else 1.0, "a delta below the truth in its 15th digit", "; ".join(wrong[:3]))


__all__ = ["account", "apart", "curve", "one_record", "table"]
