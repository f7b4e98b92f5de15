"""Images turned, moved, scaled and mirrored by numbers: exact where the pixels land on pixels."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sordino.learning.augmentation import Affine
from sordino.learning.training_tables import Augmentation

STILL = 0.5  #: the number that stands for "not at all"


def image(n: int = 1, side: int = 6) -> torch.Tensor:
    return torch.arange(n * 2 * side * side, dtype=torch.float32).view(n, 2, side, side)


def uniforms(*given: float) -> torch.Tensor:
    return torch.tensor([[*given, *[STILL] * (5 - len(given))]])


def test_without_any_amount_nothing_changes():
    x = image(3)
    assert torch.allclose(Affine()(x, torch.rand(3, 5)), x, atol=1e-5)


def test_a_mirror_turns_columns_round_every_other_time():
    x, flip = image(), Affine(flip=True)
    assert torch.allclose(flip(x, uniforms(STILL, STILL, STILL, STILL, 0.49)), x.flip(3), atol=1e-4)
    assert torch.allclose(flip(x, uniforms(STILL, STILL, STILL, STILL, 0.5)), x, atol=1e-4)


def test_a_quarter_turn_is_a_quarter_turn():
    x = image()
    turned = Affine(rotation=90.0)(x, uniforms(0.0))  # by the full amount, the other way round
    assert torch.allclose(turned, torch.rot90(x, -1, (2, 3)), atol=1e-3)


def test_a_shift_moves_whole_pixels_and_repeats_the_edge():
    x = image()
    moved = Affine(shift=1 / 3)(x, uniforms(STILL, 1.0))  # by a third of six columns
    assert torch.allclose(moved[..., :4], x[..., 2:], atol=1e-3)
    assert torch.allclose(moved[..., 4:], x[..., 5:].expand(-1, -1, -1, 2), atol=1e-3)
    down = Affine(shift=1 / 3)(x, uniforms(STILL, STILL, 1.0))
    assert torch.allclose(down[:, :, :4], x[:, :, 2:], atol=1e-3)


def test_a_zoom_enlarges_the_middle():
    x = torch.zeros(1, 1, 8, 8)
    x[..., 2:6, 2:6] = 1.0
    assert Affine(zoom=0.5)(x, uniforms(STILL, STILL, STILL, 0.0)).sum() > 2 * x.sum()  # half the side: four times


@given(st.integers(0, 2**32 - 1))
def test_each_record_is_changed_by_its_own_numbers(seed):
    generator = torch.Generator().manual_seed(seed)
    x, u = torch.rand(4, 1, 5, 5, generator=generator), torch.rand(4, 5, generator=generator)
    change = Affine(rotation=20, shift=0.2, zoom=0.1, flip=True)
    together = change(x, u)
    alone = torch.cat([change(x[k : k + 1], u[k : k + 1]) for k in range(4)])
    assert torch.allclose(together, alone, atol=1e-5)
    assert float(together.min()) >= float(x.min()) - 1e-5 and float(together.max()) <= float(x.max()) + 1e-5


@pytest.mark.parametrize("wrong", [{"rotation": 180.0}, {"shift": 1.0}, {"zoom": -0.1}, {"rotation": math.nan}])
def test_amounts_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Augmentation(**wrong)


def test_it_can_be_sent_to_another_process():
    change = Affine(rotation=15, flip=True)
    assert pickle.loads(pickle.dumps(change)) == change
