"""Count the code lines of a package by room, without blanks, comments and docstrings: `make size`."""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "src" / "sordino", ROOT / "papers")
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def docstring_lines(tree: ast.AST) -> set[int]:
    """The lines that docstrings take."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            found |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def code_lines(source: str) -> int:
    """How many lines of a module hold code."""
    lines = source.splitlines()
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            found |= set(range(token.start[0], token.end[0] + 1))
    return sum(bool(lines[number - 1].strip()) for number in found - docstring_lines(ast.parse(source)))


def by_room(package: Path) -> Counter[str]:
    """Code lines of each folder directly below a package; its own modules count one by one."""
    rooms: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        rooms[path.relative_to(package).parts[0]] += code_lines(path.read_text())
    return rooms


def main() -> None:
    """Print the rooms of each package, the largest first, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", type=Path, default=PACKAGES, help="folders of packages")
    for package in parser.parse_args().packages:
        rooms = by_room(package)
        for room, lines in rooms.most_common():
            print(f"{lines:8,}  {package.name}/{room}")
        print(f"{rooms.total():8,}  {package.name}")


if __name__ == "__main__":
    main()
