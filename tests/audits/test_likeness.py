"""Likeness of pictures against closed forms, and which candidate is the nearest."""

import base64
import math
import struct
import zlib

import numpy as np
import pytest
import torch

from sordino.audits import likeness

pytestmark = pytest.mark.unit


def pictures(count: int, channels: int = 1, side: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(seed))


def test_a_known_error_has_a_known_psnr() -> None:
    first = torch.zeros(2, 1, 8, 8)
    second = first.clone()
    second[0] += 0.1
    second[1, 0, 0, 0] = 0.8  # 0.64 / 64 = 0.01
    assert likeness.psnr(second, first).tolist() == pytest.approx([20.0, 20.0], abs=1e-5)
    assert likeness.psnr(first, first)[0] == math.inf


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32)])
def test_a_picture_is_like_itself_and_less_like_others(channels: int, side: int) -> None:
    some = pictures(3, channels, side)
    assert likeness.ssim(some, some).tolist() == pytest.approx([1.0] * 3)
    assert (likeness.ssim(some, some.roll(1, 0)) < 0.5).all()


def test_ssim_of_even_pictures_is_what_their_means_say() -> None:
    a, b, c1 = 0.25, 0.75, 0.01**2
    found = likeness.ssim(torch.full((1, 1, 16, 16), a), torch.full((1, 1, 16, 16), b))
    assert found.item() == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1), rel=1e-6)


def test_ssim_of_one_window_is_its_formula() -> None:
    x, y = pictures(1, side=8, seed=1).double(), pictures(1, side=8, seed=2).double()
    places = np.arange(8) - 3.5
    line = np.exp(-(places**2) / 4.5)
    w = np.outer(line, line) / line.sum() ** 2
    a, b = x[0, 0].numpy(), y[0, 0].numpy()
    ma, mb = (w * a).sum(), (w * b).sum()
    va, vb, ab = (w * a * a).sum() - ma**2, (w * b * b).sum() - mb**2, (w * a * b).sum() - ma * mb
    expected = (2 * ma * mb + 1e-4) * (2 * ab + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))
    assert likeness.ssim(x, y).item() == pytest.approx(expected)


def test_the_nearest_is_found_under_noise_and_at_another_brightness() -> None:
    candidates = pictures(50)
    wanted = torch.tensor([3, 41, 7])
    found = 0.3 * candidates[wanted] + 0.2 + 0.05 * pictures(3, seed=9)
    assert likeness.nearest(found, candidates).tolist() == wanted.tolist()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_pixels(channels: int) -> None:
    picture = pictures(1, channels, 5)[0]
    data = base64.b64decode(likeness.png(picture))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">IIBB", data[16:26]) == (5, 5, 8, 0 if channels == 1 else 2)
    size = struct.unpack(">I", data[33:37])[0]
    lines = zlib.decompress(data[41 : 41 + size])
    rows = np.frombuffer(lines, np.uint8).reshape(5, 1 + 5 * channels)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, 1:].reshape(5, 5, channels) == np.rint(255 * picture.permute(1, 2, 0).numpy())).all()
