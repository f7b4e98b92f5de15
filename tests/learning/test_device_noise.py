"""Noise that is drawn with tensors is the noise that is drawn with arrays."""

import numpy as np
import pytest
import torch

from sordino.learning.device_noise import DeviceNoise
from sordino.mechanisms.alias import TOTAL, AliasTable
from sordino.mechanisms.noise import LevelledNoise, discrete_gaussian, gaussian_noise
from sordino.randomness import Keystream

PROCESSOR = torch.device("cpu")


@pytest.mark.parametrize("noise", [discrete_gaussian(6), discrete_gaussian(22), gaussian_noise(2.0**17, 5)])
def test_tensors_draw_the_numbers_that_arrays_draw(noise):
    words = Keystream.simulation(3, [0, 1], 1).words(np.arange(2), 1, 0, 0, 5000 * noise.words_per_value)
    assert np.array_equal(DeviceNoise(noise, PROCESSOR).draw(words).numpy(), noise.draw(words))


def test_words_at_the_thresholds_and_at_both_ends_of_their_range_are_compared_as_unsigned_numbers():
    table = AliasTable([TOTAL // 8 * 7, TOTAL // 16, TOTAL // 16])
    noise = LevelledNoise(1.0, 1, 1, table, 1)
    near = [int(t) + d & TOTAL - 1 for t in table.thresholds for d in (-1, 0, 1)]
    words = np.array([*near, 0, 1, 2**63 - 1, 2**63, TOTAL - 1], "<u8").view("<u4")
    assert np.array_equal(DeviceNoise(noise, PROCESSOR).draw(words).numpy(), noise.draw(words))
