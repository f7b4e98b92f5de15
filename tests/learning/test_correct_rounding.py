"""Roots and quotients of tensors are those of IEEE 754, which PyTorch's own are not always."""

from __future__ import annotations

import math

import torch

from sordino.learning.correct_rounding import divided, over, root, root_


def values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.floor(torch.rand(20_000, dtype=torch.float64, generator=generator) * 2.0**46) + 1


def test_a_root_is_rounded_once() -> None:
    given = values()
    expected = [math.sqrt(value) for value in given.tolist()]
    assert root(given).tolist() == expected
    assert root_(given.clone()).tolist() == expected
    assert root(given[1::3]).tolist() == expected[1::3]


def test_quotients_are_rounded_once() -> None:
    given = values()
    assert over(1447.3, given).tolist() == [1447.3 / value for value in given.tolist()]
    assert divided(given, 3969).tolist() == [value / 3969 for value in given.tolist()]
