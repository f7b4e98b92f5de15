"""Scattering: equal to a plain reference, and the same bits of a record whatever is computed beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning import scattering
from sordino.learning.scattering import LARGEST, VALUE_BITS, WAVE_BITS, Scattering, wave
from sordino.methods.extractors import ScatteringExtractor

Map = NDArray[np.complex128] | NDArray[np.float64]

# --- a plain reference: direct sums over mirrored images, in floats ---------------------------------------------------


def morlet(scale: int, angle: int, angles: int) -> NDArray[np.complex128]:
    sigma, xi, slant = 0.8 * 2**scale, 3 * np.pi / 4 / 2**scale, 4 / angles
    reach = math.ceil(6 * sigma)
    row, column = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(float)
    theta = np.pi * angle / angles
    u, v = column * np.cos(theta) + row * np.sin(theta), row * np.cos(theta) - column * np.sin(theta)
    bell = np.exp(-(u**2 + slant**2 * v**2) / (2 * sigma**2)) * slant / (2 * np.pi * sigma**2)
    wavy = bell * np.exp(1j * xi * u)
    return wavy - bell * (wavy.real.sum() / bell.sum())


def gaussian(scale: int) -> NDArray[np.float64]:
    sigma = 0.8 * 2**scale
    reach = math.ceil(6 * sigma)
    row, column = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(float)
    bell = np.exp(-(row**2 + column**2) / (2 * sigma**2))
    return bell / bell.sum()


def filtered(x: Map, taps: Map, stride: int) -> Map:
    """Correlation at every stride-th place of an image that goes on as in a mirror, which does not repeat the edge."""
    reach = len(taps) // 2
    wide = np.pad(x, reach, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(wide, taps.shape)[::stride, ::stride]
    return np.einsum("abij,ij->ab", windows, taps)


def reference(image: NDArray[np.float64], scales: int, angles: int, orders: int) -> NDArray[np.float64]:
    """`[channels, maps, down, across]`: orders 0 and 1, then 2."""
    found = []
    for x in image:
        maps, pairs = [filtered(x, gaussian(scales - 1), 2**scales)], []
        for a in range(scales):
            firsts = [abs(filtered(x, morlet(a, angle, angles), 2**a)) for angle in range(angles)]
            maps += [filtered(first, gaussian(scales - 1 - a), 2 ** (scales - a)) for first in firsts]
            for b in range(a + 1, scales) if orders == 2 else ():
                for first in firsts:
                    for angle in range(angles):
                        second = abs(filtered(first, morlet(b - a, angle, angles), 2 ** (b - a)))
                        pairs.append(filtered(second, gaussian(scales - 1 - b), 2 ** (scales - b)))
        found.append(np.stack(maps + pairs))
    return np.stack(found)


def images(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 4 - 1


@pytest.mark.parametrize(
    ("shape", "scales", "angles", "orders"),
    [
        ((1, 28, 28), 2, 8, 2),
        ((3, 32, 32), 2, 4, 2),
        ((1, 8, 8), 1, 8, 2),
        ((1, 8, 8), 2, 6, 2),
        ((2, 8, 8), 3, 3, 2),
        ((1, 29, 17), 2, 5, 2),
        ((1, 29, 17), 3, 4, 1),
        ((3, 17, 29), 3, 2, 2),
        ((1, 28, 28), 1, 1, 1),
        ((1, 2, 3), 1, 8, 2),
    ],
)
def test_features_are_those_of_a_plain_reference(shape, scales, angles, orders):
    found = Scattering(*shape, scales=scales, angles=angles, orders=orders)
    x = images(2, *shape)
    features = found(x)
    assert features.shape == (2, *found.shape) and features.dtype == torch.float32
    for image, own in zip(x.double().numpy(), features.double().numpy(), strict=True):
        expected = reference(image, scales, angles, orders).reshape(own.shape)
        assert np.abs(own - expected).max() <= 1e-5 * np.abs(expected).max()
        assert np.allclose(own, expected, rtol=1e-5, atol=2.0 ** (1 - VALUE_BITS))  # the smallest ones to their grid


def test_features_lie_on_a_grid():
    features = Scattering(1, 12, 12)(images(3, 1, 12, 12)).double() * 2**VALUE_BITS
    assert torch.equal(features, features.round()) and features.abs().max() < 2**24


@pytest.mark.parametrize("angles", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("scale", [0, 1, 3])
def test_sums_stay_below_what_float64_has_exactly(scale, angles):
    """A modulus is at most 2 LARGEST after one wave and 3 LARGEST after another, coarser one: below 2^24 of 2^-20."""
    most = 2 if scale == 0 else 1.5
    for angle in range(angles):
        taps = wave(scale, angle, angles)
        assert torch.equal(taps, taps.round())
        assert torch.hypot(*taps).sum() < most * 2**WAVE_BITS
    assert 3 * LARGEST * 2**VALUE_BITS < 2**24


def test_waves_of_mirrored_angles_are_mirror_images():
    for angles in (3, 8):
        for angle in range(1, angles):
            real, imaginary = wave(1, angle, angles)
            mirrored = wave(1, angles - angle, angles).flip(1)
            assert torch.equal(mirrored[0], real) and torch.equal(mirrored[1], -imaginary)


def test_an_even_surface_has_no_waves_and_a_brighter_image_has_the_same():
    found = Scattering(1, 28, 28)
    even = found(torch.full((1, 1, 28, 28), 2.0))[0]
    assert torch.equal(even[0], torch.full((7, 7), 2.0)) and even[1:].abs().max() < 1e-5
    x = images(2, 1, 28, 28)
    change = found(x + 1) - found(x)
    assert (change[:, 0] - 1).abs().max() < 1e-5 and change[:, 1:].abs().max() < 1e-5


def test_waves_are_told_apart_by_direction_and_width():
    place = torch.arange(32.0)
    fine, coarse = (torch.cos(0.75 * math.pi / 2**scale * place).expand(1, 1, 32, 32) for scale in (0, 1))
    found = Scattering(1, 32, 32, angles=4, orders=1)
    across_fine, down_fine = found(fine)[0, 1:], found(fine.mT)[0, 1:]
    assert across_fine.mean((1, 2)).argmax() == 0 and down_fine.mean((1, 2)).argmax() == 2
    assert found(coarse)[0, 1:].mean((1, 2)).argmax() == 4


# --- bits -------------------------------------------------------------------------------------------------------------


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@settings(max_examples=15)
@given(st.permutations(range(7)), st.integers(1, 7), st.sampled_from([1, 2]))
def test_a_records_bits_do_not_depend_on_its_neighbours(order, size, number):
    found, x = Scattering(1, 20, 14), images(7, 1, 20, 14)
    with threads(number):
        beside = found(x[order[:size]])
    assert torch.equal(beside, one_by_one()[order[:size]])


@cache
def one_by_one():
    found, x = Scattering(1, 20, 14), images(7, 1, 20, 14)
    return torch.cat([found(x[k : k + 1]) for k in range(7)])


def test_many_records_in_several_blocks_have_the_bits_of_each_alone(monkeypatch):
    monkeypatch.setitem(scattering.BLOCKS, "cpu", 2**14)  # small ones
    found, x = Scattering(3, 16, 16), images(7, 3, 16, 16)
    assert len(found._blocks(7, x.device)) == 4
    with threads(2):
        many = found(x)
    with threads(1):
        assert torch.equal(many, torch.cat([found(x[k : k + 1]) for k in range(7)]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 29, 17)])
def test_a_gpu_has_the_same_bits(shape):
    found, x = Scattering(*shape), images(50, *shape)
    assert torch.equal(found(x.cuda()).cpu(), found(x))


# --- bad input --------------------------------------------------------------------------------------------------------


def test_what_is_no_number_counts_as_zero_and_what_is_too_large_as_the_largest():
    found = Scattering(1, 8, 8)
    odd, plain = images(1, 1, 8, 8), images(1, 1, 8, 8)
    odd[0, 0, 0, :3] = torch.tensor([math.nan, math.inf, -1e30])
    plain[0, 0, 0, :3] = torch.tensor([0, LARGEST, -LARGEST])
    assert torch.equal(found(odd), found(plain))


@pytest.mark.parametrize(
    "options",
    [{"scales": 0}, {"scales": 7}, {"angles": 0}, {"angles": 33}, {"orders": 0}, {"orders": 3}],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidInput, match="1 to 6 scales"):
        Scattering(1, 200, 200, **options)


def test_images_smaller_than_a_cell_are_refused():
    with pytest.raises(InvalidInput, match="take fewer scales"):
        Scattering(1, 8, 7, scales=3)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 8, 9), (2, 64)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(InvalidInput, match="1x8x8"):
        Scattering(1, 8, 8)(torch.zeros(shape))


# --- the extractor ----------------------------------------------------------------------------------------------------


def test_the_extractor_is_public_and_exact_and_has_maps_of_cells():
    extractor = ScatteringExtractor((3, 32, 30), scales=2, angles=8, orders=2)
    assert extractor.public and extractor.exact
    assert extractor.shape == (243, 64) and extractor.features == 15552
    x = images(2, 3, 32, 30)
    assert torch.equal(extractor(x, {}).view(2, 243, 8, 8), Scattering(3, 32, 30)(x))


def test_the_extractor_refuses_records_that_are_no_images():
    with pytest.raises(InvalidInput, match="another extractor"):
        ScatteringExtractor((64,), scales=2, angles=8, orders=2)
