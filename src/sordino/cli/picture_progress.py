"""A progress bar below the pictures that a search has found so far, where the terminal shows colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

T = TypeVar("T")
UPPER = "▀"  #: its ink is one pixel, its ground the one below
MOST = 8  #: pictures beside each other
LARGEST = 64  #: pixels of a picture's side


class PictureProgress(Progress):
    """Progress on a terminal's error stream, and nothing elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        console = Console(stderr=True) if console is None else console
        self._pictures: Text | None = None
        super().__init__(
            *self.get_default_columns(), console=console, transient=True, disable=not console.is_terminal
        )  # fmt: skip

    def track(self, items: Sequence[T], what: str, /, **_: Any) -> Iterator[T]:  # type: ignore[override]
        """The items one by one; what was found for one of them is gone with the next."""
        task = self.add_task(what, total=len(items))
        try:
            for item in items:
                yield item
                self.advance(task)
                self._pictures = None
        finally:  # an attack that is refused on its way leaves nothing behind for the next
            self._pictures = None
            self.remove_task(task)

    def watch(self, pictures: Tensor) -> None:
        """Show pictures `[N, 1 or 3, height, width]`, as many as there is room for; no tables or other channels."""
        coloured = self.console.color_system in ("256", "truecolor")
        if self.disable or not coloured or pictures.ndim != 4 or pictures.shape[1] not in (1, 3):
            return
        if max(pictures.shape[2:]) > LARGEST:
            return
        room = min(MOST, len(pictures), (self.console.width + 1) // (pictures.shape[3] + 1))
        self._pictures = blocks(pictures[:room]) if room else None

    def get_renderables(self) -> Iterable[RenderableType]:
        """The pictures, and the bars below them."""
        if self._pictures is not None:
            yield self._pictures
        yield from super().get_renderables()


def blocks(pictures: Tensor) -> Text:
    """Pictures beside each other, two rows of pixels a line."""
    values = (255 * pictures.detach().cpu().nan_to_num().clamp(0, 1)).round().int()
    values = values.expand(-1, 3, -1, -1).permute(0, 2, 3, 1)  # [N, height, width, 3]
    black = [[0, 0, 0]] * values.shape[2]
    text = Text()
    for line in range(0, values.shape[1], 2):
        for number, picture in enumerate(values.tolist()):
            text.append(" " if number else "")
            for above, below in zip(*[*picture[line : line + 2], black][:2], strict=True):
                text.append(UPPER, f"rgb({','.join(map(str, above))}) on rgb({','.join(map(str, below))})")
        text.append("\n")
    return text


__all__ = ["PictureProgress", "blocks"]
