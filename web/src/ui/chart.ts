/** Small charts of lines over rounds. Drawn as SVG, described in words, and readable as a table. */

import { details, h, s, type Child } from "./dom.ts";

export interface Point {
  x: number;
  y: number;
}

export interface Series {
  name: string;
  points: readonly Point[];
  colour: 0 | 1 | 2 | 3;
  area?: boolean;
}

export interface ChartContent {
  series: readonly Series[];
  /** The largest x, such as the number of rounds, so that the chart shows what is still to come. */
  last: number;
  /** The largest y; values above stretch it. */
  top: number;
  limit?: { y: number; name: string };
  /** One sentence for those who do not see the drawing. */
  summary: string;
}

export interface ChartFrame {
  title: string;
  note: string;
  x: string;
  y: (value: number) => string;
}

/** A drawing is about as wide as it is shown, so that its words are as large as others and do not meet. */
const [WIDE, NARROW] = [440, 330];
const HEIGHT = 230;
const LEFT = 58;
const RIGHT = 70;
const TOP = 14;
const BOTTOM = 30;

/** A chart that can be drawn anew whenever there is something new. */
export class Chart {
  readonly element: HTMLElement;
  private readonly svg = s("svg", { role: "img" });
  private readonly note = h("p");
  private width = WIDE;
  private readonly legend = h("ul", { class: "legend" });
  private readonly body = h("tbody");
  private readonly head = h("thead");
  private readonly frame: ChartFrame;

  constructor(frame: ChartFrame) {
    this.frame = frame;
    this.note.textContent = frame.note;
    const table = h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `${frame.title}: figures` },
      h("table", {}, this.head, this.body),
    );
    this.element = h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, h("h3", {}, frame.title), this.note),
      this.svg,
      this.legend,
      details("The same as a table", table),
    );
  }

  /** Other words below the title. */
  explain(words: string): void {
    if (this.note.textContent !== words) this.note.textContent = words;
  }

  draw(content: ChartContent): void {
    this.width = matchMedia("(max-width: 40rem)").matches ? NARROW : WIDE;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const scale = scaleOf(content, this.width);
    this.svg.setAttribute("aria-label", content.summary);
    this.svg.replaceChildren(
      ...this.axes(scale),
      ...content.series.flatMap((series) => this.line(series, scale, content.limit?.y)),
      ...this.limit(content, scale),
    );
    this.legend.hidden = content.series.length < 2;
    this.legend.replaceChildren(
      ...content.series.map((series) => h("li", {}, h("i", { class: `c${series.colour}` }), series.name)),
    );
    this.tabulate(content);
  }

  private axes(scale: Scale): SVGElement[] {
    const parts: SVGElement[] = [];
    for (const y of scale.yTicks) {
      const kind = y === 0 ? "foot-line" : "grid-line";
      parts.push(s("line", { class: kind, x1: LEFT, x2: this.width - RIGHT, y1: scale.y(y), y2: scale.y(y) }));
      parts.push(s("text", { x: LEFT - 8, y: scale.y(y) + 4.5, "text-anchor": "end" }, this.frame.y(y)));
    }
    for (const x of scale.xTicks) {
      parts.push(s("text", { x: scale.x(x), y: HEIGHT - 10, "text-anchor": "middle" }, x));
    }
    parts.push(s("text", { x: this.width, y: HEIGHT - 10, "text-anchor": "end" }, this.frame.x));
    return parts;
  }

  private line(series: Series, scale: Scale, limit = Infinity): SVGElement[] {
    const places = series.points.map(({ x, y }) => `${scale.x(x).toFixed(1)},${scale.y(y).toFixed(1)}`);
    const last = series.points[series.points.length - 1];
    if (last === undefined) return [];
    const first = series.points[0] as Point;
    const parts: SVGElement[] = [];
    if (series.area) {
      const foot = scale.y(0).toFixed(1);
      const path = `M${scale.x(first.x).toFixed(1)},${foot} L${places.join(" L")} L${scale.x(last.x).toFixed(1)},${foot} Z`;
      parts.push(s("path", { class: `area c${series.colour}`, d: path }));
    }
    parts.push(s("polyline", { class: `line c${series.colour}`, points: places.join(" ") }));
    parts.push(s("circle", { class: `dot c${series.colour}`, cx: scale.x(last.x), cy: scale.y(last.y), r: 4.5 }));
    const crossed = Math.abs(scale.y(last.y) - scale.y(limit)) < 12 && last.x < (scale.xTicks.at(-1) ?? 0); // by the line of the limit
    parts.push(s("text", { class: "last", x: scale.x(last.x) + 9, y: scale.y(last.y) + (crossed ? 18 : 5) }, this.frame.y(last.y)));
    return parts;
  }

  private limit(content: ChartContent, scale: Scale): SVGElement[] {
    if (content.limit === undefined) return [];
    const y = scale.y(content.limit.y);
    const middle = (LEFT + this.width - RIGHT) / 2;
    const lasts = content.series.flatMap(({ points }) => points.slice(-1)); // each has its figure beside it
    const place = lasts.some(({ x }) => scale.x(x) < middle)
      ? { x: this.width - RIGHT - 6, "text-anchor": "end" }
      : { x: LEFT + 6 };
    return [
      s("line", { class: "limit", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }),
      s("text", { class: "limit-text", ...place, y: y - 6 }, content.limit.name),
    ];
  }

  private tabulate(content: ChartContent): void {
    const rounds = [...new Set(content.series.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
    const cell = (series: Series, x: number): Child => {
      const found = series.points.find((point) => point.x === x);
      return h("td", {}, found === undefined ? "" : this.frame.y(found.y));
    };
    this.head.replaceChildren(
      h(
        "tr",
        {},
        h("th", { scope: "col" }, this.frame.x),
        ...content.series.map(({ name }) => h("th", { scope: "col" }, name)),
      ),
    );
    this.body.replaceChildren(
      ...rounds.map((x) => h("tr", {}, h("th", { scope: "row" }, x), ...content.series.map((one) => cell(one, x)))),
    );
  }
}

interface Scale {
  x(value: number): number;
  y(value: number): number;
  xTicks: number[];
  yTicks: number[];
}

export function scaleOf(content: Pick<ChartContent, "series" | "last" | "top" | "limit">, width: number): Scale {
  const all = content.series.flatMap(({ points }) => points);
  const right = Math.max(1, content.last, ...all.map(({ x }) => x));
  const step = niceStep(Math.max(content.top, content.limit?.y ?? 0, ...all.map(({ y }) => y)), 5);
  const top = step * Math.ceil(Math.max(content.top, content.limit?.y ?? 0, ...all.map(({ y }) => y)) / step - 1e-9);
  const xStep = Math.ceil(niceStep(right, width < WIDE ? 4 : 5, [1, 2, 5, 10]));
  const ticks = (end: number, by: number): number[] =>
    Array.from({ length: Math.floor(end / by + 1e-9) + 1 }, (_, k) => Number((k * by).toPrecision(12)));
  return {
    x: (value) => LEFT + (value / right) * (width - LEFT - RIGHT),
    y: (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM),
    xTicks: ticks(right, xStep),
    yTicks: ticks(top, step),
  };
}

/** One of the factors (1, 2, 2.5 or 5) times a power of ten, so that there are about `parts` steps up to `end`. */
export function niceStep(end: number, parts: number, factors: readonly number[] = [1, 2, 2.5, 5, 10]): number {
  const rough = Math.max(end, 1e-9) / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  const found = factors.find((factor) => factor * power >= rough * 0.999) ?? 10;
  return found * power;
}
