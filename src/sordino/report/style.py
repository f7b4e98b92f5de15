"""The look of all pages: one style sheet for light and dark, for screens, phones and paper, and the frame of a page."""

from __future__ import annotations

import sordino
from sordino.report.markup import Markup, element, escaped, join

_LIGHT = """
--ground: #f6f5f1; --card: #ffffff; --ink: #1d2126; --muted: #5b636e; --line: #e1e0da; --faint: #f0efea;
--accent: #0b5c94; --warn: #9c3d00; --warn-ground: #fdf0e6; --good: #006b4e; --good-ground: #e6f4ef;
--s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #a1458a; --s4: #b97f00; --s5: #3a9bd6; --s6: #555b63;
--k0: #332288; --k1: #88ccee; --k2: #44aa99; --k3: #117733; --k4: #999933; --k5: #ddcc77; --k6: #cc6677;
--k7: #882255; --k8: #aa4499; --k9: #b3b3b3; --on-dark: #ffffff;
"""
_DARK = """
--ground: #14161a; --card: #1d2026; --ink: #eceae5; --muted: #a8afb9; --line: #343941; --faint: #262a31;
--accent: #7cc0ee; --warn: #ffb27a; --warn-ground: #38261a; --good: #7fd8b8; --good-ground: #17302a;
--s0: #5fb4ea; --s1: #ff9452; --s2: #3ecfa2; --s3: #e39ac9; --s4: #f0bd48; --s5: #a9d8f5; --s6: #b4bac2;
--k0: #8478e6; --k1: #9ad4f0; --k2: #44aa99; --k3: #3fae62; --k4: #b3b34a; --k5: #ddcc77; --k6: #d9798a;
--k7: #c4457f; --k8: #c76bb8; --k9: #8b8b8b; --on-dark: #0d1013;
"""

STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; }}
body {{ margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums; }}
main {{ max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }}
h1 {{ font-size: 2.1rem; line-height: 1.15; letter-spacing: -.015em; margin: .1rem 0 .4rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.3rem; letter-spacing: -.01em; margin: 2.6rem 0 .9rem; }}
h3 {{ font-size: 1rem; margin: 0; }}
p {{ margin: .4rem 0; }}
code, pre {{ font: .87rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }}
pre {{ margin: 0; padding: 1rem; overflow-x: auto; background: var(--faint); border-radius: 8px; }}
p code {{ overflow-wrap: anywhere; }}
a {{ color: var(--accent); }}
.kicker {{ color: var(--muted); font-size: .82rem; letter-spacing: .09em; text-transform: uppercase; margin: 0; }}
.summary {{ font-size: 1.1rem; color: var(--muted); margin: 0; max-width: 46rem; overflow-wrap: anywhere; }}
.quiet {{ color: var(--muted); }}
.card {{ background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1.2rem 1.35rem; }}
.hero {{ display: grid; grid-template-columns: minmax(16rem, 1fr) 1.8fr; gap: 1.2rem 2.2rem; margin-top: 1.6rem;
  align-items: center; }}
.headline b {{ display: block; font-size: 4.2rem; line-height: 1; letter-spacing: -.035em; font-weight: 650;
  color: var(--accent); white-space: nowrap; }}
.headline b small {{ font-size: .45em; font-weight: 500; letter-spacing: 0; margin-left: .12em; }}
.headline b.words {{ font-size: 1.9rem; line-height: 1.15; letter-spacing: -.01em; white-space: normal; }}
.headline span {{ display: block; margin-top: .5rem; color: var(--muted); font-size: .95rem; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(6.4rem, 1fr)); gap: .9rem 1.2rem; margin: 0; }}
.tiles div {{ border-top: 2px solid var(--line); padding-top: .45rem; }}
.tiles dt {{ color: var(--muted); font-size: .85rem; }}
.tiles dd {{ margin: 0; font-size: 1.22rem; font-weight: 600; }}
.stopped {{ grid-column: 1 / -1; border-top: 1px solid var(--line); padding-top: .9rem; margin: 0; }}
.privacy {{ margin-top: 1.4rem; border-top: 4px solid var(--accent); }}
.privacy > h2 {{ margin: 0 0 .3rem; }}
.views {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18.5rem), 1fr)); gap: 1rem;
  margin: 1rem 0; }}
.view {{ border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.1rem; background: var(--ground); }}
.view h3 {{ font-size: 1.02rem; }}
.view > p {{ margin: 0 0 .6rem; font-size: .9rem; }}
.figures {{ display: flex; flex-wrap: wrap; gap: .6rem 2rem; margin: .5rem 0 .7rem; }}
.figures div {{ min-width: 6rem; }}
.figures dt {{ font-size: .82rem; color: var(--muted); }}
.figures dd {{ margin: 0; font-size: 1.7rem; font-weight: 650; line-height: 1.2; }}
.figures dd small {{ display: block; font-size: .8rem; font-weight: 400; color: var(--muted); }}
.figures .claimed dd {{ font-weight: 400; font-style: italic; color: var(--muted); }}
.badge {{ display: inline-block; font-size: .85rem; font-weight: 600; border-radius: 6px; padding: .12rem .55rem;
  margin: 0 .4rem .4rem 0; background: var(--faint); }}
.badge.warn {{ background: var(--warn-ground); color: var(--warn); }}
.badge.good {{ background: var(--good-ground); color: var(--good); }}
.basis {{ font-size: .87rem; color: var(--muted); overflow-wrap: anywhere; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); gap: 1.1rem; }}
.chart {{ margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.05rem 1.2rem .9rem; min-width: 0; }}
.chart figcaption {{ margin-bottom: .6rem; }}
.chart figcaption p {{ margin: .15rem 0 0; font-size: .87rem; line-height: 1.45; color: var(--muted); }}
.chart > svg {{ display: block; width: 100%; height: auto; max-width: 36rem; overflow: visible; }}
svg text {{ font-size: 13px; fill: var(--muted); }}
svg .axis {{ font-size: 12.5px; fill: var(--muted); }}
svg .grid {{ stroke: var(--line); stroke-width: 1; }}
svg .foot {{ stroke: var(--muted); stroke-width: 1; }}
svg .line {{ fill: none; stroke: var(--c); stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }}
svg .dot {{ fill: var(--c); }}
svg .target {{ fill: transparent; }}
svg .target:hover {{ fill: var(--c); }}
svg .band {{ fill: var(--c); fill-opacity: .16; }}
svg .bar {{ fill: var(--c); fill-opacity: .85; }}
svg .segment {{ fill: var(--c); stroke: var(--card); stroke-width: .6; }}
svg .cell {{ fill: var(--c); stroke: var(--card); stroke-width: .7; }}
svg .cell.fine {{ stroke: none; }}
svg .ground {{ fill: var(--faint); }}
svg .limit {{ fill: none; stroke: var(--ink); stroke-width: 2.2; }}
svg .reference {{ stroke: var(--muted); stroke-width: 1.2; stroke-dasharray: 1 4; stroke-linecap: round; }}
svg .mark {{ fill: var(--s1); }}
svg .halo {{ paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }}
svg .last {{ fill: var(--ink); font-weight: 650; font-size: 14px; }}
svg .figure {{ fill: var(--ink); }}
svg .figure.on-dark {{ fill: var(--on-dark); }}
.legend {{ list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .6rem 0 0; padding: 0;
  font-size: .87rem; color: var(--muted); }}
.legend li {{ display: flex; align-items: center; gap: .45rem; overflow-wrap: anywhere; }}
.swatch {{ flex: none; width: 26px; height: 10px; }}
span.swatch.bar {{ width: 12px; height: 12px; border-radius: 3px; background: var(--c); }}
span.swatch.limit {{ width: 16px; height: 0; border-top: 2.5px solid var(--ink); }}
span.swatch.shades {{ width: 60px; height: 12px; border-radius: 3px;
  background: linear-gradient(90deg, var(--faint), var(--c)); }}
{" ".join(f".s{k} {{ --c: var(--s{k}); }}" for k in range(7))}
{" ".join(f".k{k} {{ --c: var(--k{k}); }}" for k in range(10))}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .93rem; min-width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .42rem .9rem .42rem 0;
  border-bottom: 1px solid var(--line); }}
th {{ font-weight: 600; color: var(--muted); font-size: .85rem; }}
td.number, th.number {{ text-align: right; white-space: nowrap; }}
.scroll th:nth-last-child(-n+2) {{ min-width: 8.5rem; }}
td {{ min-width: 5.5rem; }} td.number {{ min-width: 0; }} th {{ min-width: 4rem; }}
details {{ margin-top: .7rem; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }}
details > summary {{ cursor: pointer; padding: .7rem 1.1rem; font-weight: 600; }}
details > div {{ padding: 0 1.1rem 1rem; }}
.privacy details {{ background: var(--ground); }}
.privacy > h3 {{ margin-top: 1.2rem; }}
.plain {{ padding-left: 1.15rem; margin: .5rem 0; }}
.plain li {{ margin: .3rem 0; overflow-wrap: anywhere; }}
.notice {{ border-left: 4px solid var(--s1); background: var(--warn-ground); color: var(--ink); padding: .6rem 1rem;
  border-radius: 6px; margin: 1rem 0 0; }}
footer {{ margin-top: 3rem; color: var(--muted); font-size: .87rem; }}
@media (max-width: 640px) {{
  main {{ padding: 1.4rem .9rem 3rem; }} h1 {{ font-size: 1.65rem; }} .hero {{ grid-template-columns: 1fr; }}
  .headline b {{ font-size: 3.5rem; }} .card {{ padding: 1rem; }} .chart {{ padding: .9rem .9rem .8rem; }}
  .tiles {{ grid-template-columns: repeat(2, 1fr); }} svg text, svg .axis {{ font-size: 15.5px; }}
  svg .last {{ font-size: 16.5px; }}
}}
@media print {{
  body {{ background: #fff; }} .chart, .view, .card {{ break-inside: avoid; }}
  details::details-content {{ content-visibility: visible; height: auto; }}
}}
"""


def document(title: str, *body: object) -> str:
    """A whole page that loads nothing from elsewhere."""
    foot = element("footer", f"Made by Sordino {sordino.__version__}. This page holds all it shows and loads nothing.")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{join(body, chr(10))}\n{foot}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *content: object) -> Markup | None:
    """A headed part of a page; none where it has no content."""
    kept = [part for part in content if part]
    return element("section", element("h2", title), *kept) if kept else None


def folded(title: str, *content: object) -> Markup:
    """What only some readers want: a line that opens."""
    return element("details", element("summary", title), element("div", *content))


def bullets(items: object) -> Markup:
    """A plain list."""
    entries = items if isinstance(items, (list, tuple)) else [items]
    return element("ul", *(element("li", entry) for entry in entries), class_="plain")


def tiles(entries: list[tuple[str, str]]) -> Markup:
    """Figures with what they are."""
    return element(
        "dl", *(element("div", element("dt", what), element("dd", value)) for what, value in entries), class_="tiles"
    )


def table(head: list[str], rows: list[list[object]], *, numbers: frozenset[int] = frozenset()) -> Markup:
    """A table that scrolls sideways where it must; columns of numbers are set to the right."""

    def cell(tag: str, column: int, content: object) -> Markup:
        return element(tag, content, class_="number" if column in numbers else None)

    header = element("tr", *(cell("th", k, name) for k, name in enumerate(head)))
    lines = [element("tr", *(cell("td", k, content) for k, content in enumerate(row))) for row in rows]
    return element("div", element("table", element("thead", header), element("tbody", *lines)), class_="scroll")
