/** The lines of a text file, read piece by piece: neither the size of the file nor the length of a line ends the reading. */
import { Refused } from "../wire/refusal.ts";

/** characters of a line at most: a longer one is left out */
export const LONGEST_LINE = 2 ** 24;

export interface Line {
  /** from 1 on */
  number: number;
  /** null where it is too long */
  text: string | null;
}

/**
 * Lines that are not blank, in UTF-8, some at a time. Bytes that are no text become a sign that is in no number and no class: they
 * spoil their own line alone.
 */
export async function* linesOf(file: File): AsyncGenerator<Line[]> {
  const reader = file.stream().getReader();
  const decoder = new TextDecoder("utf-8");
  let [number, rest, returned]: [number, string | null, boolean] = [1, "", false];
  try {
    for (let ended = false; !ended; ) {
      const { done, value } = await reader.read().catch(() => {
        throw new Refused(`"${file.name}" cannot be read; perhaps it was moved: choose it again`);
      });
      ended = done;
      const text = done ? decoder.decode() : decoder.decode(value, { stream: true });
      const pieces = text.slice(returned && text.startsWith("\n") ? 1 : 0).split(/\r\n|\n|\r/);
      if (text) returned = text.endsWith("\r"); // perhaps the first half of an end
      const lines: Line[] = [];
      pieces.forEach((piece, i) => {
        if (i > 0) {
          if (rest !== null) lines.push({ number, text: rest });
          [number, rest] = [number + 1, ""];
        }
        if (rest === null) return; // it is told already that this line is too long
        rest = rest.length + piece.length > LONGEST_LINE ? null : rest + piece;
        if (rest === null) lines.push({ number, text: null });
      });
      if (done && rest !== null) lines.push({ number, text: rest });
      yield lines.filter((line) => line.text === null || line.text.trim() !== "");
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}
