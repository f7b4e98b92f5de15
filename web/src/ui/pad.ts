/** A place to draw on, by finger, mouse, pen or keyboard, and how a drawing becomes a picture of the model's size. */

import { h } from "./dom.ts";

export interface Picture {
  width: number;
  height: number;
  /** grey values, 0 for the background and 255 for ink, row by row */
  pixels: Uint8Array;
}

const SIDE = 280;
const PEN = 22;
const STEP = 14;
const FINE = 64;

export class Pad {
  readonly canvas: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private readonly changed: () => void;
  private drawing = false;
  private penDown = false;
  private at = { x: SIDE / 2, y: SIDE / 2 };
  private empty = true;

  constructor(label: string, changed: () => void) {
    this.changed = changed;
    this.canvas = h("canvas", {
      class: "pad",
      width: SIDE,
      height: SIDE,
      tabindex: 0,
      role: "application",
      "aria-roledescription": "drawing area",
      "aria-label": `${label}. With the keyboard: arrow keys move the pen, space puts it down or lifts it, escape clears.`,
    });
    const context = this.canvas.getContext("2d", { willReadFrequently: true });
    if (context === null) throw new Error("this browser cannot draw on a page");
    this.context = context;
    this.wipe();
    this.listen();
  }

  get isEmpty(): boolean {
    return this.empty;
  }

  clear(): void {
    this.wipe();
    this.changed();
  }

  private wipe(): void {
    this.context.fillStyle = "#fff";
    this.context.fillRect(0, 0, SIDE, SIDE);
    this.empty = true;
    this.penDown = false;
  }

  /** The drawing in the model's size, centred as the pictures of digits are. */
  picture(width: number, height: number): Picture {
    const { data } = this.context.getImageData(0, 0, SIDE, SIDE);
    const ink = new Float32Array(SIDE * SIDE).map((_, k) => 255 - (data[4 * k] ?? 255));
    return { width, height, pixels: centred(ink, SIDE, width, height) };
  }

  private listen(): void {
    this.canvas.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.canvas.focus({ preventScroll: true });
      this.canvas.setPointerCapture(event.pointerId);
      this.drawing = true;
      this.at = this.place(event);
      this.stroke(this.at);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.drawing) return;
      for (const one of event.getCoalescedEvents?.() ?? [event]) this.stroke(this.place(one));
    });
    for (const name of ["pointerup", "pointercancel"] as const) {
      this.canvas.addEventListener(name, () => (this.drawing = false));
    }
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  private key(event: KeyboardEvent): void {
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [-STEP, 0],
      ArrowRight: [STEP, 0],
      ArrowUp: [0, -STEP],
      ArrowDown: [0, STEP],
    };
    const move = moves[event.key];
    if (event.key === " ") this.penDown = !this.penDown;
    else if (event.key === "Escape") this.clear();
    else if (move === undefined) return;
    event.preventDefault();
    const [dx, dy] = move ?? [0, 0];
    const to = { x: clamp(this.at.x + dx), y: clamp(this.at.y + dy) };
    if (this.penDown) this.stroke(to);
    else this.at = to;
  }

  private place(event: PointerEvent): { x: number; y: number } {
    const box = this.canvas.getBoundingClientRect();
    return { x: ((event.clientX - box.left) * SIDE) / box.width, y: ((event.clientY - box.top) * SIDE) / box.height };
  }

  private stroke(to: { x: number; y: number }): void {
    this.context.strokeStyle = "#15181c";
    this.context.lineWidth = PEN;
    this.context.lineCap = "round";
    this.context.lineJoin = "round";
    this.context.beginPath();
    this.context.moveTo(this.at.x, this.at.y);
    this.context.lineTo(to.x, to.y + 0.01);
    this.context.stroke();
    this.at = to;
    this.empty = false;
    this.changed();
  }
}

function clamp(value: number): number {
  return Math.max(PEN / 2, Math.min(SIDE - PEN / 2, value));
}

/**
 * Cuts the ink out and sets it in the middle, at its own proportions. Small pictures are filled to the edge, as the 8 x 8
 * digits are; larger ones keep a margin of a seventh on each side, as MNIST's do.
 */
export function centred(ink: Float32Array, side: number, width: number, height: number): Uint8Array {
  const box = inkBox(ink, side);
  const pixels = new Uint8Array(width * height);
  if (box === null) return pixels;
  const margin = Math.min(width, height) >= 16 ? 1 / 7 : 0;
  const scale = Math.max(box.w / (width * (1 - 2 * margin)), box.h / (height * (1 - 2 * margin)));
  const left = box.x + box.w / 2 - (width * scale) / 2;
  const top = box.y + box.h / 2 - (height * scale) / 2;
  const parts = Math.max(4, Math.round(FINE / width));
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      let sum = 0;
      for (let k = 0; k < parts * parts; k++) {
        const x = Math.floor(left + scale * (column + ((k % parts) + 0.5) / parts));
        const y = Math.floor(top + scale * (row + (Math.floor(k / parts) + 0.5) / parts));
        if (x >= 0 && y >= 0 && x < side && y < side) sum += ink[y * side + x] ?? 0;
      }
      pixels[row * width + column] = Math.round(Math.min(255, sum / (parts * parts)));
    }
  }
  return pixels;
}

function inkBox(ink: Float32Array, side: number): { x: number; y: number; w: number; h: number } | null {
  let left = side,
    right = -1,
    top = side,
    bottom = -1;
  for (let k = 0; k < ink.length; k++) {
    if ((ink[k] ?? 0) < 64) continue;
    const x = k % side,
      y = Math.floor(k / side);
    left = Math.min(left, x);
    right = Math.max(right, x);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  }
  return right < 0 ? null : { x: left, y: top, w: right - left + 1, h: bottom - top + 1 };
}

/** A picture as a person sees it: dark on light. */
export function thumbnail(picture: Picture, label: string): HTMLCanvasElement {
  const canvas = h("canvas", { width: picture.width, height: picture.height, role: "img", "aria-label": label });
  const context = canvas.getContext("2d");
  const image = context?.createImageData(picture.width, picture.height);
  if (!context || !image) return canvas;
  picture.pixels.forEach((value, k) => image.data.set([255 - value, 255 - value, 255 - value, 255], 4 * k));
  context.putImageData(image, 0, 0);
  return canvas;
}
