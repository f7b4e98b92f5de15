"""What MkDocs is told about this repository: the front page, the navigation, links between files, generated pages.

Pages are written for a repository: README.md is the front page, links name files, and a page of docs/ may link any
file. On the site every such link leads to a page: files outside docs/ get one when something links them.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks")

ROOT = Path(__file__).resolve().parent.parent
DOORS = ("try.md", "use.md", "understand.md", "look-up.md")  #: navigation is what their lists link, in this order
HOMES = {
    "README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}  # fmt: skip
SHOWN = {".py": "python", ".toml": "toml", ".ts": "typescript", ".sh": "bash"}  #: files that become a page of code
KEYS = "<!-- recipe keys -->"
STYLE = ROOT / "web" / "styles" / "base.css"  #: the participants' page, which lends its colours and its mark
MARK = ROOT / "web" / "public" / "assets" / "icon.svg"

_FENCE = re.compile(r"(^[ ]*```.*?^[ ]*```[^\n]*\n?)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_ENTRY = re.compile(r"^[*-] \[([^\]]+)\]\(([^)#\s]+)\)")
_TAGS = re.compile(r"(<pre.*?</pre>|<code.*?</code>|<a .*?</a>|<[^>]+>)", re.DOTALL)
_ITEM = re.compile(r"^([*-]|\d+\.) ")

#: pages that are not in docs/, by their place on the site
_elsewhere: dict[str, str] = {}


# --- where a file of the repository is on the site --------------------------------------------------------------------


def site_path(path: str) -> str | None:
    """The site's source file for a file of the repository; None where there is no such file."""
    if path in HOMES:
        return HOMES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    place = ROOT / path
    if path.startswith("..") or not place.exists():
        return None
    if place.suffix == ".ipynb":
        return f"notebooks/{place.stem}.md"
    return f"source/{path}.md" if place.is_dir() or place.suffix in SHOWN else f"source/{path}"


def repository_path(src: str) -> str:
    """The file of the repository that a page of the site is made from."""
    return _elsewhere.get(src, f"docs/{src}")


def target(src: str, link: str) -> str:
    """The file of the repository that a link on a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(repository_path(src)), link.partition("#")[0]))


def is_local(link: str) -> bool:
    """Whether a link leads to another file of the repository."""
    return not re.match(r"[a-z]+:|#|/", link)


def prose(text: str) -> Iterator[str]:
    """What stands outside blocks of code."""
    yield from _FENCE.split(text)[::2]


def site_links(text: str, src: str) -> str:
    """The text with links to files of the repository turned into links between pages of the site."""

    def renamed(found: re.Match[str]) -> str:
        link = found[0]
        own = site_path(target(src, link)) if is_local(link) else None
        if own is None:
            return link  # MkDocs says what is wrong with it
        anchor = link.partition("#")[1:]
        return posixpath.relpath(own, posixpath.dirname(src) or ".") + "".join(anchor)

    parts = _FENCE.split(text)
    return "".join(part if n % 2 else _LINK.sub(renamed, part) for n, part in enumerate(parts))


# --- Markdown as GitHub reads it --------------------------------------------------------------------------------------


def as_on_github(text: str) -> str:
    """Write lists after a line of text, what belongs to their items, and folded parts as Python-Markdown wants them."""
    text = re.sub(r"^<!--.*?-->\n", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<details>", '<details markdown="1">', text)
    lines: list[str] = []
    width, fenced = 0, False
    for line in text.splitlines():
        before = lines[-1] if lines else ""
        item = None if fenced else _ITEM.match(line)
        if item:
            if before.strip() and not width:
                lines.append("")
            width = len(item[0])
        elif line.strip() and not line.startswith(" ") and not fenced and (not before.strip() or line.startswith("#")):
            width = 0
        indent = len(line) - len(line.lstrip(" "))
        if width and indent >= width:
            line = " " * (indent // width * max(4 - width, 0)) + line
        if line.lstrip().startswith("```"):
            fenced = not fenced
        lines.append(line)
    return "\n".join(lines) + "\n"


# --- navigation -------------------------------------------------------------------------------------------------------


def door(name: str) -> dict[str, list[object]]:
    """A door's part of the navigation: its page, then what its lists link, by heading."""
    title = name
    entries: list[object] = [{"Overview": name}]
    here = entries
    for line in (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            title = line[2:]
        elif line.startswith("## "):
            here = []
            entries.append({line[3:]: here})
        elif found := _ENTRY.match(line):
            path = target(name, found[2])
            here.append({found[1]: site_path(path) or path})
    return {title: entries}


def pages_of(entries: object) -> Iterator[str]:
    """All pages of a part of the navigation."""
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for below in entries.values():
            yield from pages_of(below)
    elif isinstance(entries, list):
        for one in entries:
            yield from pages_of(one)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the doors."""
    config.nav = [{"Start": "index.md"}, *map(door, DOORS)]
    pages = list(pages_of(config.nav))
    if twice := {page for page in pages if pages.count(page) > 1}:
        raise PluginError(
            f"behind two doors: {', '.join(sorted(twice))}; link it in the list of one, and in the text of others"
        )
    return config


# --- pages that are not in docs/ --------------------------------------------------------------------------------------


def notebook(path: str) -> str:
    """A notebook as a page."""
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells)
    shown = (
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
    )
    return "\n\n".join([*shown, f"The notebook is `{path}` of the repository."])


def listing(path: str) -> str:
    """A file of code, or what is in a folder, as a page."""
    place = ROOT / path
    if place.is_dir():
        known = subprocess.run(
            ["git", "ls-files", "."], cwd=place, capture_output=True, text=True, check=False
        ).stdout.split()
        files = sorted(known or (str(own.relative_to(place)) for own in place.iterdir()))
        return "\n".join([f"# `{path}`\n", *(f"- `{name}`" for name in files)])
    return f"# `{path}`\n\n````{SHOWN[place.suffix]}\n{place.read_text(encoding='utf-8')}````\n"


def content(path: str) -> str:
    """The Markdown of a page that is made from a file outside docs/."""
    if path in HOMES:
        return (ROOT / path).read_text(encoding="utf-8")
    return notebook(path) if path.endswith(".ipynb") else listing(path)


def colours(style: str) -> str:
    """The colours of the participants' page, light and dark, for the schemes of the site."""
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    found = {"default": re.findall(r"--[\w-]+:[^;]+;", light), "slate": re.findall(r"--[\w-]+:[^;]+;", dark)}
    return "\n".join(f'[data-md-color-scheme="{name}"] {{ {" ".join(own)} }}' for name, own in found.items())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page, every file outside docs/ that a page links, and what the look takes from the page."""
    files.append(File.generated(config, "images/mark.svg", abs_src_path=str(MARK)))
    files.append(File.generated(config, "stylesheets/colours.css", content=colours(STYLE.read_text(encoding="utf-8"))))
    _elsewhere.clear()
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for path, src in HOMES.items():
        _elsewhere[src] = path
        texts[src] = content(path)
    for src, text in list(texts.items()):
        for link in filter(is_local, (found for part in prose(text) for found in _LINK.findall(part))):
            path = target(src, link)
            own = site_path(path)
            if own is not None and not path.startswith("docs/"):
                _elsewhere[own] = path
    for src, path in _elsewhere.items():
        if src.endswith(".md"):
            file = File.generated(config, src, content=content(path))
        else:
            file = File.generated(config, src, abs_src_path=str(ROOT / path))
        if src.startswith("source/"):
            file.inclusion = file.inclusion.NOT_IN_NAV
        files.append(file)
    return files


# --- pages ------------------------------------------------------------------------------------------------------------


def recipe_keys() -> str:
    """Every key of a recipe, as `sordino recipes keys --markdown` prints them, a table for each part of a recipe."""
    command = [sys.executable, "-m", "sordino", "recipes", "keys", "--markdown"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise PluginError(f"{' '.join(command)} failed:\n{done.stderr}")
    head, rule, *rows = done.stdout.splitlines()
    parts: dict[str, list[str]] = {}
    for row in rows:
        table, dot, rest = row.split("`")[1].partition(".")
        name = table if dot else "The recipe itself"
        if table == "method":
            name = f"method.{rest.partition('.')[0]}" if "." in rest else "method"
        parts.setdefault(name, []).append(row)
    ordered = sorted(parts, key=lambda name: (name.partition(".")[0] == "method", 0))
    return "\n".join(f"\n## {name}\n\n{head}\n{rule}\n" + "\n".join(parts[name]) for name in ordered)


def mentions(html: str, src: str) -> str:
    """Link the pages that docstrings, the grammar and the changelog name as docs/name.md."""

    def link(found: re.Match[str]) -> str:
        place = posixpath.relpath(f"{found[1]}.html", posixpath.dirname(src) or ".")
        return f'<a href="{place}">{found[1]}</a>' if (ROOT / found[0]).exists() else found[0]

    parts = _TAGS.split(html)
    return "".join(part if n % 2 else re.sub(r"docs/([\w/-]+)\.md", link, part) for n, part in enumerate(parts))


def whole_options(html: str) -> str:
    """Mark the options of commands in a sentence, so that no line ends within their hyphens."""
    return re.sub(
        r"<code>[^<]*</code>",
        lambda code: re.sub(r"(?<![\w-])--[a-z][\w-]*", r'<span class="option">\g<0></span>', code[0]),
        html,
    )


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and turn links between files into links between pages."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    elif page.file.src_uri.startswith("source/"):
        page.meta["search"] = {"exclude": True}
    if KEYS in markdown:
        markdown = markdown.replace(KEYS, recipe_keys())
    return as_on_github(site_links(markdown, page.file.src_uri))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep a figure and its spread on one line, and an option; lay out what precedes the front page's first section."""
    src = page.file.src_uri
    html = whole_options(html)
    if src != "index.md":
        return mentions(html.replace(" ± ", "&nbsp;±&nbsp;"), src)
    first, mark, rest = html.partition("<h2")
    return f'<div class="front">\n{first}</div>\n{mark}{rest}'


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Give the search a name for those who hear the page."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
