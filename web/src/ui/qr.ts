/** A link as a QR code, which the camera of a phone reads. */

import { encode } from "uqr";
import { s } from "./dom.ts";

/** Light modules on each side, as readers expect them. */
const MARGIN = 4;

/** The dark modules of a QR code as one path, in a square of `size` modules with its margin. */
export function qrPath(text: string): { size: number; path: string } {
  const { data, size } = encode(text, { ecc: "L", border: MARGIN });
  const dark = data.flatMap((row, y) => row.map((on, x) => (on ? `M${x} ${y}h1v1h-1z` : "")));
  return { size, path: dark.join("") };
}

/** Dark on light in every colour scheme: many readers take nothing else. */
export function qrView(text: string): SVGElement {
  const { size, path } = qrPath(text);
  return s(
    "svg",
    { class: "qr", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "QR code of the link to this federation" },
    s("rect", { width: size, height: size, fill: "#fff" }),
    s("path", { d: path, fill: "#000", "shape-rendering": "crispEdges" }),
  );
}
