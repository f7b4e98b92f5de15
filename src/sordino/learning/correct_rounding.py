"""Roots and quotients that are rounded once, as IEEE 754 has them: the same on every machine, and in web pages.

PyTorch's own are not. On a processor `torch.sqrt` is the vector library's, one unit off in the last place in a percent
of cases; a plain number over a tensor is that number times the rounded reciprocal, and on a GPU so is a tensor over a
plain number.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor


def root(values: Tensor) -> Tensor:
    """The square root."""
    return root_(values.clone())


def root_(values: Tensor) -> Tensor:
    """The square root, in place."""
    if values.device.type != "cpu":
        return values.sqrt_()
    whole = values.numpy()
    np.sqrt(whole, out=whole)
    return values


def over(number: float, values: Tensor) -> Tensor:
    """number / values."""
    return values.new_full((), number) / values


def divided(values: Tensor, number: float) -> Tensor:
    """values / number."""
    return values / values.new_full((), number)


__all__ = ["divided", "over", "root", "root_"]
