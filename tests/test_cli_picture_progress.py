"""Pictures on the terminal while an attack searches: two rows of pixels a line, none where no colours are shown."""

import io

import pytest
import torch
from rich.console import Console

from sordino.cli.picture_progress import PictureProgress, blocks

PICTURES = torch.tensor(
    [[[[0.0, 1.0], [0.5, 0.0], [1.0, 1.0]]], [[[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]]]
)  # [2, 1, 3, 2]


def terminal(width: int = 80, **changes: object) -> Console:
    given = {"file": io.StringIO(), "force_terminal": True, "color_system": "truecolor", "width": width, **changes}
    return Console(**given)  # type: ignore[arg-type]


def shown(progress: PictureProgress) -> int:
    return str(next(iter(progress.get_renderables()))).count("▀")


def test_a_character_is_a_pixel_above_and_one_below():
    text = blocks(PICTURES)
    lines = text.plain.splitlines()
    assert [len(line) for line in lines] == [5, 5]  # two pixels, a gap, two pixels; three rows and a black one
    first = text.get_style_at_offset(Console(), 0)
    assert first.color.get_truecolor() == (0, 0, 0) and first.bgcolor.get_truecolor() == (128, 128, 128)
    last = text.get_style_at_offset(Console(), len(text.plain) - 2)
    assert last.color.get_truecolor() == (255, 255, 255) and last.bgcolor.get_truecolor() == (0, 0, 0)


def test_as_many_are_shown_as_there_is_room_for_and_gone_with_the_next_item():
    with PictureProgress(terminal(width=4)) as progress:
        items = progress.track([1, 2], "Reconstructing")
        next(items)
        progress.watch(PICTURES)
        assert shown(progress) == 4  # one picture of two
        next(items)
        assert shown(progress) == 0
        assert list(items) == [] and not progress.tasks


@pytest.mark.parametrize("changes", [{"color_system": None}, {"force_terminal": False}])
def test_nothing_is_shown_without_colours_or_a_terminal(changes):
    with PictureProgress(terminal(**changes)) as progress:
        progress.watch(PICTURES)
        assert shown(progress) == 0


def test_records_of_a_table_are_not_shown():
    with PictureProgress(terminal()) as progress:
        progress.watch(torch.zeros(3, 5))
        assert shown(progress) == 0


@pytest.mark.parametrize("channels", [2, 4])
def test_pictures_of_other_channels_are_not_shown(channels):
    with PictureProgress(terminal()) as progress:
        progress.watch(torch.zeros(3, channels, 5, 5))
        assert shown(progress) == 0


def test_pixels_that_are_no_numbers_are_black():
    text = blocks(torch.full((1, 1, 2, 1), torch.nan))
    assert text.get_style_at_offset(Console(), 0).color.get_truecolor() == (0, 0, 0)


def test_what_is_refused_on_its_way_leaves_neither_bars_nor_pictures_behind():
    with PictureProgress(terminal()) as progress:
        items = progress.track([1, 2], "Reconstructing")
        next(items)
        progress.watch(PICTURES)
        items.close()
        assert not progress.tasks and shown(progress) == 0
