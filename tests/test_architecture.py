"""The page that tells where things are names places that are there."""

import re
from pathlib import Path

from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION

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


def test_every_path_of_the_guide_for_contributors_exists():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`((?:src|web|tests|papers|docs|benchmarks)/[\w/.-]*)`", guide))
    assert len(paths) > 15
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_pages_and_reports_see_no_protection_above_the_same_epsilon():
    found = re.search(r"NO_MEANINGFUL_PROTECTION = ([\d.]+);", (ROOT / "web" / "src" / "ui" / "words.ts").read_text())
    assert found and float(found[1]) == NO_MEANINGFUL_PROTECTION


def test_every_room_of_the_page_is_in_the_table():
    rooms = [path.name for path in (ROOT / "web" / "src").iterdir() if path.is_dir()]
    assert [room for room in sorted(rooms) if f"`web/src/{room}/`" not in PAGE] == []


def test_every_room_is_in_the_picture():
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    picture = PAGE.split("```")[1]
    assert [room for room in sorted(rooms) if not re.search(rf"\b{room}\b", picture)] == []
