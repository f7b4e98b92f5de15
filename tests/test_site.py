"""The documentation as a site: it builds without a warning, nothing is lost, nothing comes from elsewhere."""

import json
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from website import hooks

import sordino
from tests.site import ROOT, built

DOCS = ROOT / "docs"


class Addresses(HTMLParser):
    """What a page links, and what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "link" and given.get("rel") in ("canonical", "prev", "next"):
            self.links.append(given["href"])
        elif tag != "a":
            self.loads += [given[name] for name in ("src", "href", "data", "poster") if name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Addresses]:
    return {path: Addresses(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_every_page_becomes_one(site, pages):
    wanted = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    made = {path.relative_to(site) for path in pages}
    assert wanted | {Path("index.html"), Path("changelog.html")} <= made


def test_every_link_leads_to_a_file_and_a_place_in_it(site, pages):
    lost = []
    for path, found in pages.items():
        for link in [*found.links, *found.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path not in ("", ".") else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.exists() or (
                parts.fragment and goal in pages and unquote(parts.fragment) not in pages[goal].ids
            ):
                lost.append((str(path.relative_to(site)), link))
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    loads = {load for found in pages.values() for load in found.loads}
    assert [load for load in loads if urlsplit(load).scheme not in ("", "data") or urlsplit(load).netloc] == []
    sheets = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", sheets) == []


def test_the_front_page_has_table_commands_and_pictures_before_its_first_section(site):
    front = (site / "index.html").read_text(encoding="utf-8").partition('<div class="front">')[2].partition("<h2")[0]
    assert Counter(re.findall(r"<(h1|table|pre|img)\b", front)) == {"h1": 1, "table": 1, "pre": 1, "img": 2}
    assert re.findall(r"make \w+", re.sub(r"<[^>]+>", "", front.partition("<pre")[2])) == ["make run", "make test"]


def test_every_recipe_key_is_on_its_page(site):
    command = [sys.executable, "-m", "sordino", "recipes", "keys", "--json"]
    keys = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    page = (site / "recipe-keys.html").read_text(encoding="utf-8")
    assert Counter(re.findall(r"<td><code>([\w.]+)</code></td>", page)) >= Counter(key["key"] for key in keys)


def test_public_names_and_own_parts_are_in_the_reference(site, pages):
    ids = {name for path, found in pages.items() if path.parent == site / "api" for name in found.ids}
    homes = {name: f"sordino.{sordino._HOMES[name]}.{name}" for name in sordino.__all__}
    assert [name for name, home in homes.items() if not ids & {f"sordino.{name}", home}] == []
    bases = set(re.findall(r"`(sordino(?:\.\w+)+\.[A-Z]\w+(?:\.Spec)?)`", (DOCS / "own-parts.md").read_text()))
    assert len(bases) > 10
    assert sorted(bases - ids) == []


def test_search_knows_pages_and_their_text(site):
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    found = {entry["location"].partition("#")[0] for entry in entries if "shuffler" in entry["text"]}
    assert "shuffler.html" in found
    assert not [entry for entry in entries if entry["location"].startswith("source/")]


@pytest.mark.unit
def test_the_site_uses_colours_that_the_page_has_in_both_modes():
    sheet = (ROOT / "website" / "theme" / "stylesheets" / "sordino.css").read_text(encoding="utf-8")
    used = {name for name in re.findall(r"var\(--([\w-]+)\)", sheet) if not name.startswith("md-")}
    assert len(used) > 8
    for scheme in hooks.colours(hooks.STYLE.read_text(encoding="utf-8")).splitlines():
        assert sorted(used - set(re.findall(r"--([\w-]+):", scheme))) == []


@pytest.mark.unit
def test_every_page_is_behind_one_door():
    doors = [page for name in hooks.DOORS for page in hooks.pages_of(hooks.door(name))]
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(pages - set(doors)) == [], "link it in a list of docs/try.md, use.md, understand.md or look-up.md"
    assert [page for page, count in Counter(doors).items() if count > 1] == []


@pytest.mark.unit
@pytest.mark.parametrize(
    ("src", "link", "wanted"),
    [
        ("index.md", "docs/tour.md#budgets", "tour.md#budgets"),
        ("papers/ldp-fl.md", "../mechanisms.md", "../mechanisms.md"),
        ("architecture.md", "../CONTRIBUTING.md#add-a-part", "contributing.md#add-a-part"),
        ("own-parts.md", "../examples/own_method/fedadam.py", "source/examples/own_method/fedadam.py.md"),
        ("try.md", "../examples/notebooks/own_data.ipynb", "notebooks/own_data.md"),
        ("bits.md", "../tests/golden/vectors.json", "source/tests/golden/vectors.json"),
        ("bits.md", "../no/such/file.py", "../no/such/file.py"),
        ("bits.md", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_links_between_files_become_links_between_pages(src, link, wanted, monkeypatch):
    monkeypatch.setitem(hooks._elsewhere, "index.md", "README.md")
    code = f"```\n[x]({link})\n```\n"
    assert hooks.site_links(f"[x]({link}) and\n{code}", src) == f"[x]({wanted}) and\n{code}"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Text\n* one\n* two\n", "Text\n\n* one\n* two\n"),
        ("* one\n\n  ```\n  code\n  ```\n", "* one\n\n    ```\n    code\n    ```\n"),
        ("1. one\n\n   more\n\nText\n", "1. one\n\n    more\n\nText\n"),
        ("<!-- mark -->\n| a |\n", "\n| a |\n"),
        ("```\nText\n* no list\n```\n", "```\nText\n* no list\n```\n"),
    ],
)
def test_markdown_is_read_as_on_github(text, wanted):
    assert hooks.as_on_github(text) == wanted


@pytest.mark.unit
def test_an_option_in_a_sentence_stays_on_one_line():
    html = hooks.whole_options("without <code>run --dry-run a--b</code>, --so")
    assert html == 'without <code>run <span class="option">--dry-run</span> a--b</code>, --so'
