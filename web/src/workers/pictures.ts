/** Pictures: from files or drawings to the pixels that a task asks for. */

/** Grey values or colours, channel after channel, row by row, 0 to 255. */
export interface Picture {
  channels: number;
  width: number;
  height: number;
  pixels: ArrayLike<number>;
}

/** The picture at another size: every new pixel is the mean of what it covers. */
export function resized({ channels, width, height, pixels }: Picture, toWidth: number, toHeight: number): Float32Array {
  const result = new Float32Array(channels * toWidth * toHeight);
  if (width === toWidth && height === toHeight) return Float32Array.from(pixels);
  const across = shares(width, toWidth);
  const down = shares(height, toHeight);
  for (let c = 0; c < channels; c += 1) {
    for (let y = 0; y < toHeight; y += 1) {
      for (let x = 0; x < toWidth; x += 1) {
        let sum = 0;
        for (const [row, high] of down[y]!) {
          for (const [column, wide] of across[x]!) sum += high * wide * pixels[(c * height + row) * width + column]!;
        }
        result[(c * toHeight + y) * toWidth + x] = sum;
      }
    }
  }
  return result;
}

/** For each new place, the old places that it covers with their shares, which add up to 1. */
function shares(from: number, to: number): [number, number][][] {
  return Array.from({ length: to }, (_, place) => {
    const [first, last] = [(place * from) / to, ((place + 1) * from) / to];
    const covered: [number, number][] = [];
    for (let old = Math.floor(first); old < Math.min(from, Math.ceil(last)); old += 1) {
      const share = (Math.min(last, old + 1) - Math.max(first, old)) / (last - first);
      if (share > 1e-9) covered.push([old, share]);
    }
    return covered;
  });
}

/** Whether the edge of a grey picture is bright: data sets of drawings have a dark background. */
export function hasBrightEdge(pixels: ArrayLike<number>, width: number, height: number): boolean {
  let [sum, count] = [0, 0];
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (y > 0 && y < height - 1 && x > 0 && x < width - 1) continue;
      sum += pixels[y * width + x]!;
      count += 1;
    }
  }
  return sum / count > 127.5;
}

/** Reads a picture's file in a browser; null where it is damaged or no picture. */
export async function decoded(file: Blob, channels: number): Promise<Picture | null> {
  try {
    return pixelsOf(await createImageBitmap(file), channels);
  } catch {
    return null; // whatever is wrong with it: the others are read all the same
  }
}

function pixelsOf(bitmap: ImageBitmap, channels: number): Picture | null {
  const largest = Math.max(bitmap.width, bitmap.height);
  const scale = Math.min(1, 512 / largest); // more than any task asks for, and small enough to count through
  const [width, height] = [Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale))];
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) return null;
  context.fillStyle = "#fff"; // what is transparent is paper
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  const pixels = new Float32Array(channels * width * height);
  for (let p = 0; p < width * height; p += 1) {
    const [r, g, b] = [data[4 * p]!, data[4 * p + 1]!, data[4 * p + 2]!];
    if (channels === 1) pixels[p] = 0.299 * r + 0.587 * g + 0.114 * b;
    else [r, g, b].slice(0, channels).forEach((value, c) => (pixels[c * width * height + p] = value));
  }
  return { channels, width, height, pixels };
}
