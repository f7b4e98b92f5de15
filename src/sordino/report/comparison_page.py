"""The page of a comparison: a table of figures, plots with their spread, and what is proven for each setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sordino.privacy.statement import NO_CLAIM, NO_MEANINGFUL_PROTECTION, View
from sordino.report import plots, scales
from sordino.report.compare import UNSET, ComparedRun, Comparison, Repetitions, Spread, is_number, said
from sordino.report.crown import crowned, have_same_data
from sordino.report.epsilons import relation
from sordino.report.markup import Markup, element, join
from sordino.report.metric_words import ACCURACY, figure_axis, figure_words
from sordino.report.plots import Series
from sordino.report.records import to_line
from sordino.report.statement import change, claim_terms, guesses, onlooker, proof, reasons, terms
from sordino.report.style import bullets, charts, document, folded, section, table, tiles
from sordino.report.words import capital, counted, decimal, deltas, duration, listed, lower, size, span, upper
from sordino.storage.files import make_folder, write_whole

_MOST_LINES = 12  #: in one plot


def write_comparison(comparison: Comparison, folder: Path | str) -> tuple[Path, Path]:
    """Write `comparison.html` and `comparison.csv` into a folder, and say where they are."""
    page, figures = Path(folder) / "comparison.html", Path(folder) / "comparison.csv"
    make_folder(Path(folder))
    write_whole(page, comparison_page(comparison).encode())
    write_whole(figures, comparison.to_csv().encode())
    return page, figures


def comparison_page(comparison: Comparison) -> str:
    """One page that holds all it shows."""
    groups = counted(len(comparison.groups), "setting")
    title = f"{counted(comparison.runs, 'run')} of {groups} compared"
    return document(
        f"{title} · Sordino",
        element(
            "header",
            element("p", "Comparison", class_="kicker"),
            element("h1", title),
            element("p", _what_differs(comparison), class_="summary"),
        ),
        join(element("p", note, class_="notice") for note in comparison.notes) if comparison.notes else None,
        element("div", _best(comparison), class_="card", style="margin-top:1.6rem"),
        section("Figures", element("div", _main_table(comparison), class_="card"), _spread_words(comparison)),
        section(
            capital(comparison.metric),
            charts(_accuracy_by_round(comparison), *_accuracy_by_key(comparison), _accuracy_by_proof(comparison)),
        ),
        section("Privacy", _privacy(comparison)),
        section("Details", _differences(comparison), _common_settings(comparison), _folders(comparison)),
    )


def _what_differs(comparison: Comparison) -> str:
    if comparison.keys:
        more = len(comparison.keys) - 6
        some = listed([*comparison.keys[:6], *([f"{more} more settings"] if more > 0 else [])])
        return f"They differ in {some}; runs that differ in their seed only are put together."
    return "They differ in their seed only." if comparison.runs > 1 else "A single run."


def _best(comparison: Comparison) -> Markup:
    if (best := comparison.best()) is None:
        return element("p", "No run was evaluated.")
    (spread, group), metric = best, comparison.metric
    if len(comparison.groups) == 1:
        return tiles([(metric, _score(metric, spread)), *_lead_tile(group)])
    extreme = "lowest" if comparison.smaller_is_better else "highest"
    if not have_same_data(comparison):
        return element("p", "No setting is best: they are about different data (data.source).")
    crown = crowned(comparison)
    if not crown:
        told = "No setting is best: of none is anything meaningful proven."
        return join([element("p", told), tiles([(f"{extreme} {metric}, unprotected", _score(metric, spread))])])
    leader, metric_words = crown[0], f"best {metric} under protection"
    title = metric_words if len(crown) == 1 else f"{metric_words}, {len(crown)} settings tied"
    entries = [(title, _score(metric, leader.score)), ("with", listed([comparison.label(one) for one in crown]))]
    if group not in crown:
        better = "lower" if comparison.smaller_is_better else "higher"
        entries.append((f"{better}, but unprotected", f"{_score(metric, spread)}, {comparison.label(group)}"))
    return tiles([*entries, *(_lead_tile(leader) if len(crown) == 1 else [])])


def _lead_tile(group: Repetitions) -> list[tuple[str, str]]:
    """A setting's own epsilon beside its figure."""
    return [] if group.lead is None else [(f"epsilon ({terms(group.lead)})", span(group.lead.proven, shown=upper))]


def _score(metric: str, spread: Spread | None) -> str:
    if spread is None or spread.deviation is None:
        return figure_words(metric, None if spread is None else spread.mean)
    if metric != ACCURACY:
        return f"{decimal(spread.mean)} ± {decimal(spread.deviation)}"
    return f"{100 * spread.mean:.1f} ± {100 * spread.deviation:.1f} %"


def _spread_words(comparison: Comparison) -> Markup:
    said = "± is one standard deviation over runs with different seeds (n - 1 in the denominator)"
    single = sum(len(group.runs) == 1 for group in comparison.groups)
    if single:
        said += f"; {counted(single, 'setting')} with a single run {'has' if single == 1 else 'have'} none"
    return element("p", f"{said}.", class_="quiet")


def _main_table(comparison: Comparison) -> Markup:
    # with too many settings for a column each, a single column names the group
    keys = () if comparison.named or len(comparison.keys) > 4 else comparison.keys
    found = {terms(group.lead) for group in comparison.groups if group.lead}
    common = f" ({next(iter(found))})" if len(found) == 1 else ""
    named = [comparison.short(key) for key in keys] or ["setting"]
    head = [*named, comparison.metric, f"epsilon, proven{common}", "an attacker is right", "runs", "rounds", "a round",
            "up", "down"]  # fmt: skip
    best = crowned(comparison) if len(comparison.groups) > 1 else ()
    rows = [_main_row(comparison, group, keys, bool(common), group in best) for group in comparison.groups]
    note = (
        "Up and down are bytes per client and round. Epsilons are those of each run's own page; all others are folded "
        "away below. Best are the protected settings within the 95 % interval of the best."
    )
    numbers = frozenset({len(named), *range(len(named) + 3, len(head))})
    return join([table(head, rows, numbers=numbers), element("p", note, class_="quiet")])


def _main_row(
    comparison: Comparison, group: Repetitions, keys: Sequence[str], common: bool, is_best: bool
) -> list[object]:
    named: list[object] = [said(group.settings.get(key, UNSET)) for key in keys] or [comparison.label(group)]
    return [
        *named,
        join(
            [
                element("span", "best", class_="badge good") if is_best else None,
                element("b", _score(group.metric, group.score)),
            ]
        ),
        *_leading_figures(group, common),
        str(len(group.runs)),
        _mean(group.spread("rounds"), lambda value: f"{value:.4g}"),
        _mean(group.spread("seconds per round"), duration),
        _mean(group.spread("bytes up per client and round"), size),
        _mean(group.spread("bytes down per client and round"), size),
    ]


def _mean(spread: Spread | None, words: Callable[[float], str]) -> str:
    return "" if spread is None else words(spread.mean)


def _leading_figures(group: Repetitions, common: bool) -> list[object]:
    """The epsilon of the leading view; its terms stand in the head of the table or beside the figure."""
    view = group.lead
    if view is None:
        return ["no statement", ""]
    beside = None if common else element("span", f" ({terms(view)})", class_="quiet")
    return [
        element("span", span(view.proven, shown=upper), beside, class_="wide"),
        element("span", guesses(view), class_="wide"),
    ]


def _privacy(comparison: Comparison) -> Markup | None:
    head = ["setting", "what may change", "who is looking", "proven", "claimed", "audited", "verdict",
            "beside the setting's own", "proof"]  # fmt: skip
    rows: list[list[object]] = [
        [comparison.label(group), change(view), onlooker(view), *_view_cells(view, group.lead)]
        for group in comparison.groups
        for view in group.views
    ]
    if not rows:
        return element("p", "None of these runs has a privacy statement.")
    return folded("All epsilons, proven and claimed, with what proves them", table(head, rows))


def _view_cells(view: View, lead: View | None) -> list[object]:
    claimed: object = ""
    if view.claimed is not None:
        claimed = element("i", f"{span(view.claimed)} ({claim_terms(view)})")
    bound = view.audited
    audited = "" if bound is None else f"≥ {lower(bound.epsilon)} ({deltas((bound.delta,), lower)})"
    warning = ": no meaningful protection" if NO_MEANINGFUL_PROTECTION < view.proven[1] < math.inf else ""
    proven = f"{span(view.proven, shown=upper)} ({deltas(view.deltas, upper)}){warning}"
    verdict = "; ".join(verdict for verdict in view.verdicts if verdict != NO_CLAIM)
    beside = "" if lead is None else relation(view, lead)
    return [proven, claimed, audited, verdict, beside, proof(view) or reasons(view)]


# --- plots -----------------------------------------------------------------------------------------------------------


def _accuracy_by_round(comparison: Comparison) -> Markup | None:
    lines = []
    for group in comparison.groups[:_MOST_LINES]:
        found = group.by_round()
        points = tuple((float(number), spread.mean) for number, spread in found)
        spreads = tuple(spread.deviation or 0.0 for _, spread in found) if len(group.runs) > 1 else ()
        lines.append(Series(comparison.label(group), points, spreads))
    drawn = [line for line in lines if line.points]
    if not drawn:
        return None
    x = scales.rounds("round", [place for line in drawn for place, _ in line.points])
    y = figure_axis(comparison.metric, _reach(comparison, drawn))
    note = "Mean over seeds, with one standard deviation to both sides"
    if any(len({run.result.rounds for run in group.runs}) > 1 for group in comparison.groups):
        note += "; a line ends where the first of its runs does"
    if len(comparison.groups) > _MOST_LINES:
        note += f"; the first {_MOST_LINES} of {len(comparison.groups)} settings"
    return plots.line_chart(f"{capital(comparison.metric)} by round", drawn, x, y, f"{note}.")


def _accuracy_by_key(comparison: Comparison) -> list[Markup | None]:
    """For every numeric setting that differs: accuracy against it, a line for each choice of the others."""
    note = "Mean over seeds, with one standard deviation to both sides."
    return [
        _against(
            comparison,
            f"{capital(comparison.metric)} against {key}",
            lambda group, key=key: _number(group.settings.get(key)),  # type: ignore[misc]
            [other for other in comparison.keys if other != key],
            key,
            note,
        )
        for key in _numeric_keys(comparison)
        if _varies_alone(comparison, key)
    ]


def _varies_alone(comparison: Comparison, key: str) -> bool:
    """Whether groups that agree in all other settings differ in this one: else a line would compare nothing."""
    others = [other for other in comparison.keys if other != key]
    alike = [comparison.words(group, others) for group in comparison.groups]
    return len(set(alike)) < len(alike)


def _numeric_keys(comparison: Comparison) -> list[str]:
    values = {key: {_number(g.settings.get(key)) for g in comparison.groups} - {None} for key in comparison.keys}
    return [key for key, found in values.items() if len(found) > 1]


def _number(value: object) -> float | None:
    return float(value) if is_number(value) else None


def _accuracy_by_proof(comparison: Comparison) -> Markup | None:
    """What privacy costs: accuracy against the proven epsilon of the view that leads all statements."""
    found = {terms(group.lead) for group in comparison.groups if group.lead}
    if len(found) != 1:
        return None

    def proven(group: Repetitions) -> float | None:
        largest = group.lead.proven[1] if group.lead else math.inf
        return largest if math.isfinite(largest) else None

    numeric = _numeric_keys(comparison)
    named = [key for key in comparison.keys if key not in numeric] if len(numeric) == 1 else comparison.keys
    note = f"Proven for {next(iter(found))}; where clients differ, the largest."
    return _against(comparison, f"{capital(comparison.metric)} against epsilon", proven, named, "epsilon, proven", note)


def _against(
    comparison: Comparison,
    title: str,
    place: Callable[[Repetitions], float | None],
    named: Sequence[str],
    label: str,
    note: str,
) -> Markup | None:
    """Accuracy against a number that each group has, with a line for each choice of the settings `named`."""
    lines: dict[str, list[tuple[float, Spread]]] = {}
    for group in comparison.groups:
        across, spread = place(group), group.score
        if across is not None and spread is not None:
            whole = len(named) == len(comparison.keys)
            name = comparison.label(group) if whole else comparison.words(group, named) or comparison.metric
            lines.setdefault(name, []).append((across, spread))
    ordered = {name: sorted(found, key=lambda pair: pair[0]) for name, found in lines.items()}
    drawn = [_spread_line(name, found) for name, found in ordered.items()][:_MOST_LINES]
    places = [across for line in drawn for across, _ in line.points]
    if len(set(places)) < 2:
        return None
    y = figure_axis(comparison.metric, _reach(comparison, drawn))
    is_epsilon = "epsilon" in label and min(places) > 0
    x = scales.spread_out(label, places)
    if is_epsilon:
        x = replace(scales.logarithmic(f"{label} (log scale)", places), text=upper)
    return plots.line_chart(title, drawn, x, y, note)


def _spread_line(name: str, found: Sequence[tuple[float, Spread]]) -> Series:
    points = tuple((place, spread.mean) for place, spread in found)
    return Series(name, points, tuple(spread.deviation or 0.0 for _, spread in found))


def _reach(comparison: Comparison, lines: Sequence[Series]) -> list[float]:
    """Everything an axis must hold: values, and how far they spread."""
    low, high = (0.0, 1.0) if comparison.metric == ACCURACY else (-math.inf, math.inf)
    ends = []
    for line in lines:
        for (_, value), spread in zip(line.points, line.spread or (0.0,) * len(line.points), strict=True):
            ends += [max(low, value - spread), min(high, value + spread)]
    return ends


# --- details ---------------------------------------------------------------------------------------------------------


def _differences(comparison: Comparison) -> Markup | None:
    """A row for each setting that differs, where groups go by their names and nothing else tells what these mean."""
    if not comparison.named:
        return None
    rows: list[list[object]] = [
        [element("code", key), *(said(group.settings.get(key, UNSET)) for group in comparison.groups)]
        for key in comparison.keys
    ]
    return folded("Every setting that differs", table(["key", *(group.name for group in comparison.groups)], rows))


def _common_settings(comparison: Comparison) -> Markup | None:
    first, *others = [group.settings for group in comparison.groups]
    shared: list[list[object]] = [
        [element("code", key), said(value)]
        for key, value in first.items()
        if all(key in own and to_line(own[key]) == to_line(value) for own in others)
    ]
    return folded("Settings that all runs share", table(["key", "value"], shared)) if shared else None


def _run_score(comparison: Comparison, run: ComparedRun) -> str:
    accuracy = comparison.metric == ACCURACY
    return figure_words(comparison.metric, run.result.accuracy if accuracy else run.result.figure)


def _folders(comparison: Comparison) -> Markup:
    lines = [
        f"{run.folder} (seed {run.result.seed}, {_run_score(comparison, run)})"
        for group in comparison.groups
        for run in group.runs
    ]
    return folded("The runs", bullets(lines))
