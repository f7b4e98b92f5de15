"""The main figures of a comparison as a table to paste: Markdown, LaTeX or comma-separated values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from sordino.errors import InvalidInput
from sordino.report.compare import Comparison, Repetitions
from sordino.report.metric_words import ACCURACY
from sordino.report.statement import adversary
from sordino.report.words import decimal, span, upper
from sordino.storage.files import make_folder, write_whole

_HEAD = ("runs", "rounds", "proven epsilon", "claimed epsilon (as its paper counts)", "delta", "adjacency", "against")
_TEXT = frozenset({0, 7, 8})  #: columns of words; the others are numbers
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": "$<$", ">": "$>$",
}  # fmt: skip


def table_head(comparison: Comparison) -> list[str]:
    """The columns' names; accuracies are in per cent."""
    return ["setting", "accuracy (%)" if comparison.metric == ACCURACY else comparison.metric, *_HEAD]


def table_rows(comparison: Comparison) -> list[list[str]]:
    """A row for each setting; epsilons are those that lead its runs' statements, beside what they mean."""
    return [_row(comparison, group) for group in comparison.groups]


def _row(comparison: Comparison, group: Repetitions) -> list[str]:
    spread, score = group.score, "not measured"
    if spread is not None:
        score = _number(group.metric, spread.mean)
        score += "" if spread.deviation is None else f" ± {_number(group.metric, spread.deviation)}"
    rounds = span([run.result.rounds for run in group.runs], "-", lambda value: f"{value:.0f}")
    first = [comparison.label(group), score, str(len(group.runs)), rounds]
    view = group.lead
    if view is None:
        return [*first, "no statement", "", "", "", ""]
    claimed = "none" if view.claimed is None else span(view.claimed)
    delta = " or ".join(map(upper, view.deltas))
    return [*first, span(view.proven, shown=upper), claimed, delta, str(view.adjacency), adversary(view)]


def _number(metric: str, value: float) -> str:
    return f"{100 * value:.2f}" if metric == ACCURACY else decimal(value)


def to_markdown(comparison: Comparison) -> str:
    """A table in Markdown, numbers to the right."""
    head = table_head(comparison)
    rules = ["---" if column in _TEXT else "---:" for column in range(len(head))]
    lines = [head, rules, *table_rows(comparison)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def to_latex(comparison: Comparison) -> str:
    """A `tabular` with the rules of the package booktabs."""
    head = table_head(comparison)
    columns = "".join("l" if column in _TEXT else "r" for column in range(len(head)))
    body = "".join(_latex_line(row) for row in table_rows(comparison))
    return (
        "% \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{_latex_line(head)}\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _latex_line(cells: Sequence[str]) -> str:
    return f"{' & '.join(map(latex_text, cells))} \\\\\n"


def latex_text(text: str) -> str:
    """Text as LaTeX prints it as it stands; an infinite epsilon as its sign."""
    if text == "infinite":
        return r"$\infty$"
    return re.sub(r"[\\&%$#_{}~^±<>]", lambda found: _LATEX[found[0]], text)


FORMS: dict[str, Callable[[Comparison], str]] = {
    ".md": to_markdown,
    ".tex": to_latex,
    ".csv": Comparison.to_csv,
}


def check_table(path: Path) -> None:
    """Refuse a file of a form that no table has."""
    if path.suffix not in FORMS:
        raise InvalidInput(f"{path} is no table that can be written: end its name in {', '.join(FORMS)}")


def write_table(comparison: Comparison, path: Path) -> None:
    """Write the table in the form that the file's name asks for."""
    check_table(path)
    make_folder(path.parent)
    write_whole(path, FORMS[path.suffix](comparison).encode())


__all__ = ["FORMS", "check_table", "latex_text", "table_head", "table_rows", "to_latex", "to_markdown", "write_table"]
