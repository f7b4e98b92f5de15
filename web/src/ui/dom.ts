/** Makes elements. Text is always text: nothing here takes markup, so nothing that a server says can become any. */

export type Child = Node | string | number | null | undefined | false;
type Value = string | number | boolean | null | undefined | ((event: Event) => void);
export type Attributes = Record<string, Value>;

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; attributes whose names begin with `on` are listeners. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  add(element, children);
  return element;
}

export function add(parent: Node, children: readonly Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Puts other content into an element. */
export function fill(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  add(parent, children);
}

/** Changes text only where it differs, so that a screen reader is not told the same thing twice. */
export function say(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Hands a JSON text to the person as a file. */
export function saveFile(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** A list of facts, each with its name. */
export function facts(kind: string, entries: readonly (readonly [string, Child])[]): HTMLDListElement {
  return h(
    "dl",
    { class: kind },
    ...entries
      .filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "")
      .map(([name, value]) =>
        kind === "tiles" ? h("div", {}, h("dt", {}, name), h("dd", {}, value)) : pair(name, value),
      ),
  );
}

function pair(name: string, value: Child): DocumentFragment {
  const both = document.createDocumentFragment();
  add(both, [h("dt", {}, name), h("dd", {}, value)]);
  return both;
}

export function details(title: string, ...content: Child[]): HTMLDetailsElement {
  return h("details", {}, h("summary", {}, title), h("div", { class: "stack" }, ...content));
}
