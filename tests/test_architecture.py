"""The page that tells where things are names places that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "sordino"


def test_every_path_on_the_page_exists():
    paths = set(re.findall(r"`((?:src|web|tests|papers)/[\w/.-]*)`", PAGE))
    assert len(paths) > 20
    inside = set(re.findall(r"`([a-z_]+/[a-z_]+\.py)`", PAGE))
    assert len(inside) > 15
    everything = sorted(paths | inside)
    assert [path for path in everything if not ((ROOT / path).exists() or (SOURCE / path).exists())] == []


def test_every_room_is_in_the_picture():
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    picture = PAGE.split("```")[1]
    assert [room for room in sorted(rooms) if not re.search(rf"\b{room}\b", picture)] == []
