import { afterEach, describe, expect, test, vi } from "vitest";
import { tasks } from "../golden.ts";
import { readTask, type Task } from "../wire/task.ts";
import { DataRoom, type DataSource, type Loaded, type SamplePlace, columnsOf, pictureToRecord } from "./data.ts";
import { hasBrightEdge, resized } from "./pictures.ts";
import { Blocks } from "./blocks.ts";
import { LONGEST_LINE } from "./lines.ts";
import type { FirstLine, Reading } from "./table.ts";

const digits: Task = { ...tasks["webfed-digits"], input: { ...tasks["webfed-digits"].input, largest: 16 } };
const table: Task = { ...digits, input: { shape: [2], mean: [1, 10], std: [2, 5], kind: "features" }, classes: ["no", "yes"] };
const room = new DataRoom();
const csv = (text: string, name = "mine.csv") => new File([text], name);
const joined = ({ blocks, summary }: Loaded) => ({
  x: Float32Array.from(blocks.flatMap(({ x }) => [...x])), y: Int32Array.from(blocks.flatMap(({ y }) => [...y])), summary,
});
const loaded = (source: DataSource, task: Task, place: SamplePlace | null) => room.load(source, task, place).then(joined);
const load = (text: string, task = table, reading: Reading = {}) => loaded({ kind: "csv", file: csv(text), first: "names", ...reading }, task, null);

afterEach(() => vi.unstubAllGlobals());

describe("a table", () => {
  test.each([
    ["a,b,class\n3,20,yes\n-1,0,no\n", {}],
    ["3;20;yes\r\n-1;0;no", { first: ";" }],
    ["\ufeff3\t20\tYES\n\n-1\t0\t0\n", { first: "\t" }],
  ] as const)("is read with a header, or as its owner says, and normalised by the task's constants: %j", async (text, reading) => {
    const { x, y, summary } = await load(text, table, reading);
    expect([...x]).toEqual([1, 2, -1, -2]);
    expect([...y]).toEqual([1, 0]);
    expect(summary).toMatchObject({ records: 2, perClass: [1, 1], notes: [] });
  });

  test("may have its class in any column", async () => {
    expect([...(await load('"class",a,b\n"yes",3,20\n')).y]).toEqual([1]);
    expect([...(await load("a,kind,b\n3,yes,20\n", table, { label: 1 })).x]).toEqual([1, 2]);
    expect([...(await load("3,yes,20\n4,no,2\n", table, { label: 1, first: "," })).y]).toEqual([1, 0]);
  });

  test.each([
    ["text where a number belongs", "oops,20,no", "line 3, a: \"oops\" is not a number"],
    ["a class that there is not", "3,20,maybe", "line 3: the class \"maybe\" is none of no, yes"],
    ["a class beyond the last", "3,20,2", "the class \"2\" is none"],
    ["too few columns", "3,no", "line 3 has 2 columns, not 3"],
    ["too many columns", "3,20,no,1", "line 3 has more than 3 columns"],
    ["far too many columns", ",".repeat(LONGEST_LINE), "line 3 has more than 3 columns"],
    ["a long cell in quotation marks", `"${"a,".repeat(LONGEST_LINE / 2 - 8)}",20,no`, 'line 3, a: "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a," is not a number'],
    ["quotation marks alone", '"'.repeat(LONGEST_LINE), "line 3 has 1 columns, not 3"],
    ["a number of many digits", `${"1".repeat(LONGEST_LINE - 10)}x,20,no`, 'line 3, a: "111111111111111111111111111111" is not a number'],
    ["more characters than a line may have", "x".repeat(LONGEST_LINE + 1), "line 3 is longer than 16,777,216 characters"],
    ["an empty cell", "3,,no", "line 3, b: \"\" is not a number"],
    ["a comma in a number", '"3,5",20,no', "line 3, a: \"3,5\" is not a number"],
    ["a number beyond all numbers", "1e999,20,no", "line 3, a: 1e999 is too large; numbers go up to 3.4e38"],
    ["a number beyond those of training", "3,-3.5e38,no", "line 3, b: -3.5e38 is too large"],
    ["a quotation mark that is not closed", '"3,20,no', "line 3 has 1 columns"],
  ])("leaves a line out with %s, and changes nothing of all others", async (_, line, note) => {
    const wide = { ...table, input: { ...table.input, mean: [1, 10], std: [0.5, 5] } };
    const before = await load("a,b,class\n3,20,yes\n-1,0,no\n", wide);
    const after = await load(`a,b,class\n3,20,yes\n${line}\n-1,0,no\n`, wide);
    expect(after.x).toEqual(before.x);
    expect(after.y).toEqual(before.y);
    expect(after.summary).toEqual({ ...before.summary, notes: [expect.stringContaining(note)] });
  });

  test("leaves a line out of which a number is no text in UTF-8, and no other", async () => {
    const bytes = Uint8Array.from([..."a,b,class\n3,20,yes\n", 0xff, 0xc3, ..."\n-1,0,no\n"].map((sign) => (typeof sign === "string" ? sign.charCodeAt(0) : sign)));
    const { y, summary } = await loaded({ kind: "csv", file: new File([bytes], "mine.csv"), first: "names" }, table, null);
    expect([...y]).toEqual([1, 0]);
    expect(summary.notes).toHaveLength(1);
  });

  test.each([
    ["nothing", "\n\n", {}, /is empty/],
    ["another number of columns", "a,b,c,class\n1,2,3,yes\n", {}, /4 columns; this federation takes 2 numbers and a class, 3 in all/],
    ["a header that is too long", `a,b,class${" ".repeat(LONGEST_LINE)}\n`, {}, /first line .* is longer than 16,777,216 characters/],
    ["a class column that nobody named", "a,b,c\n1,2,yes\n", {}, /which of its columns is the class.*a, b, c/],
    ["a class column that it does not have", "a,b,c\n1,2,yes\n", { label: 3 }, /"4" is none for the class.*a, b, c/],
  ])("with %s is refused, whatever its records are", async (_, text, reading, reason) => {
    await expect(load(text, table, reading)).rejects.toThrow(reason);
  });

  const named = {
    ...table,
    input: { ...table.input, columns: [{ name: "age", low: 0, high: 100 }, { name: "BMI", low: null, high: null }] },
  };

  test.each([
    ["in the model's order", "age,BMI,class\n3,20,yes\n", []],
    ["in any order and with spaces", "class, BMI ,age\nyes,20,3\n", []],
    ["in other capitals", "bmi;Age;label\n20;3;yes\n", []],
    ["with others between them", "id,BMI,class,age,ward\n7,20,yes,3,north\n", ["id", "ward"]],
    ["with a class that has an own name", "BMI,ill,age\n20,yes,3\n", []],
  ])("of named columns is matched by their names: %s", async (_, text, extra) => {
    const { x, y, summary } = await load(text, named);
    expect([...x]).toEqual([1, 2]);
    expect([...y]).toEqual([1]);
    expect(summary.matched?.columns.map((name) => name.toLowerCase())).toEqual(["age", "bmi"]);
    expect(["class", "label", "ill"]).toContain(summary.matched?.label);
    expect(summary.notes.length).toBe(extra.length ? 1 : 0);
    for (const name of extra) expect(summary.notes[0]).toContain(name);
  });

  test.each([
    ["that lacks one", "age,class\n3,yes\n", /BMI/],
    ["that lacks both", "a,b,class\n3,20,yes\n", /age, BMI/],
    ["with two of one name", "age,BMI,BMI,class\n3,20,1,yes\n", /two columns .*BMI/],
    ["without a class", "age,BMI\n3,20\n", /class/],
    ["with two columns that may hold the class", "ill,BMI,age,ward\nyes,20,3,north\n", /ill, ward/],
  ])("of named columns %s is refused, and what is wrong is named", async (_, text, reason) => {
    await expect(load(text, named)).rejects.toThrow(reason);
  });

  test("of named columns has its class where the owner says so, and not where the model learns from", async () => {
    const text = "age,outcome,BMI,class\n3,yes,20,7\n";
    expect([...(await load(text, named, { label: 1 })).y]).toEqual([1]);
    await expect(load(text, named, { label: 0 })).rejects.toThrow(/age/);
    await expect(load("3,20,yes\n", named, { first: "," })).rejects.toThrow(/age, BMI/);
  });

  test("has the columns of its header: no record decides which one is the class, nor what stands between cells", async () => {
    const header = "age,smoker,outcome,BMI\n";
    const rows = Array.from({ length: 1000 }, (_, i) => `${i % 90},${i % 3 ? "no" : "yes"},${i % 2 ? "no" : "yes"},${i % 40}`).join("\n");
    for (const more of ["", "\n50,yes,unknown,20", "\n50,unknown,yes,20", "\n50;yes;yes;20;;;;;"]) {
      await expect(load(header + rows + more, named)).rejects.toThrow(/smoker, outcome/);
      const { y } = await load(header + rows + more, named, { label: 2 });
      expect([...y.subarray(0, 1000)]).toEqual(Array.from({ length: 1000 }, (_, i) => 1 - (i % 2)));
    }
    for (const first of ["1;2;yes", "1\t2\tyes", "a;b;c", "7"]) {
      const { y } = await load(`${first}\n3,20,yes\n4,1,no`, table, { first: "," });
      expect([...y]).toEqual([1, 0]);
    }
  });

  test.each([
    ["a usual name", "id,age,Label,BMI\n", named, {}, [0, 2], 2],
    ["the only other column", "age,ill,BMI", named, {}, [1], 1],
    ["several others", "age,ill,BMI,ward", named, {}, [1, 3], null],
    ["columns by position", "a;b;c\n", table, {}, [0, 1, 2], null],
    ["a usual name by position", "y\ta\tb\n", table, {}, [0, 1, 2], 0],
    ["no header", "1,2,yes\n", table, { first: "," }, [0, 1, 2], 2],
  ] as const)("says by its first line where the class may be: %s", async (_, text, task, { first = "names" }: Reading, candidates, label) => {
    expect(await columnsOf(csv(text), task, first)).toMatchObject({ candidates, label });
  });

  test("joins whatever it holds: a task that would make common numbers infinite, or pixels too bright, is refused for everybody", () => {
    for (const odd of [{ std: [1e-30] }, { largest: 3.4e38 }, { largest: 2 ** -11 }]) {
      expect(() => readTask({ ...digits, input: { ...digits.input, ...odd } })).toThrow(/input.(std|largest)/);
    }
    expect(() => readTask(digits)).not.toThrow();
  });

  test("has the largest number there is where normalising goes beyond it: no record is too large to join with", async () => {
    const { x, summary } = await load("a,b,class\n3.4e38,-3.4e38,no\n", { ...table, input: { ...table.input, std: [0.5] } });
    expect([...x]).toEqual([3.4028234663852886e38, -3.4028234663852886e38]);
    expect(summary).toMatchObject({ records: 1, notes: [] });
  });

  test.each([
    ["no record", "a,b,class\n", undefined, 0],
    ["no record and no header", "", "," as const, 0],
    ["one record", "a,b,class\n3,20,yes\n", undefined, 1],
    ["one that cannot be used", "a,b,class\n3,20,maybe\n", undefined, 0],
  ])("with %s is one to take part with", async (_, text, first: FirstLine = "names", records) => {
    const { x, summary } = await load(text, table, { first });
    expect([x.length, summary.records]).toEqual([2 * records, records]);
  });

  test("that has no named columns has names in its first line, or an example, as its owner says: no record decides that", async () => {
    for (const text of ["3,20,yes\n", "class,20,yes\n3,20,yes\n", "a,b,class\n", "y,a,b\n3,20,yes\n"]) {
      await expect(room.load({ kind: "csv", file: csv(text) }, table, null)).rejects.toThrow(/say whether the first line/);
      await expect(columnsOf(csv(text), table)).rejects.toThrow(/say whether the first line/);
      expect((await columnsOf(csv(text), table, ",")).label).toBe(2);
    }
    expect((await load("class,20,yes\n3,20,yes\n", table, { first: "," })).summary.notes).toEqual([expect.stringContaining("line 1, column 1")]);
    expect([...(await load("0,1,class\n3,20,yes\n")).y]).toEqual([1]); // names may be numbers
  });

  test("may be longer than any text and any array: it is read piece by piece", async () => {
    const row = new TextEncoder().encode("3,20,yes\r\n-1,0,no\r\n");
    const [many, pieces] = [300_000, 100];
    const text = new Uint8Array(10 + many * row.length).fill(0x20);
    text.set(new TextEncoder().encode("a,b,class\n"));
    for (let i = 0; i < many; i += 1) text.set(row, 10 + i * row.length);
    const each = Math.ceil(text.length / pieces) | 1; // so that some end between \r and \n
    const file = { name: "mine.csv", size: 2 ** 40, stream: () => new ReadableStream<Uint8Array>({
      start(stream) {
        for (let at = 0; at < text.length; at += each) stream.enqueue(text.subarray(at, at + each));
        stream.close();
      },
    }) } as unknown as File;
    const { blocks, summary } = await room.load({ kind: "csv", file, first: "names" }, { ...table, input: { ...table.input, shape: [2] } }, null);
    expect(summary).toMatchObject({ records: 2 * many, perClass: [many, many], notes: [] });
    expect(blocks.at(-1)!.x.slice(-4)).toEqual(Float32Array.of(1, 2, -1, -2));
  });

  test("whose header has no end is refused before all of it is read", async () => {
    const endless = { name: "mine.csv", stream: () => new ReadableStream({ pull: (stream) => stream.enqueue(new Uint8Array(2 ** 20)) }) } as unknown as File;
    await expect(columnsOf(endless, table, "names")).rejects.toThrow(/first line .* is longer than/);
  });

  test("that can no longer be read says so", async () => {
    const gone = { name: "mine.csv", stream: () => new ReadableStream({ start: (stream) => stream.error(new Error("gone")) }) } as unknown as File;
    await expect(room.load({ kind: "csv", file: gone, first: "names" }, table, null)).rejects.toThrow(/"mine.csv" cannot be read; perhaps it was moved/);
  });

  test("names a few lines that it leaves out, and the numbers of the others", async () => {
    const rows = Array.from({ length: 51 }, (_, i) => (i === 20 ? "1,1,no" : "x,1,yes")).join("\n");
    const { summary } = await load(`a,b,class\n${rows}\n1,1,yes`);
    expect(summary.records).toBe(2);
    expect(summary.notes).toEqual([expect.stringMatching(/^50 of 52 lines .*line 2, .*line 3, .*line 4, .*and lines 5-21, 23-52\.$/)]);
  });

  test("of pictures keeps to the brightness that there is", async () => {
    const line = (value: number) => `${Array(64).fill(value).join(",")},7\n`;
    expect([...(await load(line(16), digits, { first: "," })).x.slice(0, 2)]).toEqual([1, 1]);
    expect((await load(line(200), digits, { first: "," })).summary.notes).toEqual([expect.stringContaining("they go from 0 to 16 here")]);
  });

  test("that is no text is refused", async () => {
    const file = new File([Uint8Array.of(0xff, 0xfe, 0x00, 0xd8)], "picture.jpg");
    await expect(room.load({ kind: "csv", file, first: "names" }, table, null)).rejects.toThrow(/not a table of text/);
  });
});

describe("pictures", () => {
  const files = (...names: string[]) => names.map((name) => new File(["?"], name));

  test("that cannot be read are left out and named, if it is all of them too", async () => {
    vi.stubGlobal("createImageBitmap", async () => { throw new Error("damaged"); });
    const left = async () => {
      const { y, summary } = await loaded({ kind: "images", classes: [{ label: 1, files: files("a.png", "b.png") }] }, digits, null);
      expect(y).toHaveLength(0);
      expect(summary).toMatchObject({ records: 0, notes: [expect.stringMatching(/2 of 2 files could not be read as pictures .* a.png, b.png/)] });
    };
    await left();
    vi.stubGlobal("createImageBitmap", async () => ({ width: 1, height: 1 })); // and then it cannot be drawn
    await left();
  });

  /** Pictures of one pixel, as bright as their file says. */
  const bright = (...values: number[]) => values.map((value, i) => new File([Uint8Array.of(value)], `${i}.png`));
  const seen = () => {
    vi.stubGlobal("createImageBitmap", async (file: File) => {
      if (file.size === 0) throw new Error("damaged");
      return { width: 1, height: 1, value: new Uint8Array(await file.arrayBuffer())[0], close() {} };
    });
    vi.stubGlobal("OffscreenCanvas", class {
      getContext() {
        let value = 0;
        return { fillRect() {}, drawImage: (bitmap: any) => (value = bitmap.value), getImageData: () => ({ data: [value, value, value, 255] }) };
      }
    });
  };

  test("that show the same as another one are one record", async () => {
    seen();
    const { y, summary } = await loaded({ kind: "images", classes: [{ label: 1, files: bright(9, 20, 9) }, { label: 2, files: bright(9) }] }, digits, null);
    expect([...y]).toEqual([1, 1, 2]);
    expect(summary.notes).toHaveLength(1);
  });

  test("of one name, size and time are two where they show something else", async () => {
    seen();
    const [one, other] = [9, 20].map((value) => new File([Uint8Array.of(value)], "a.png", { lastModified: 5 }));
    const { y } = await loaded({ kind: "images", classes: [{ label: 1, files: [one!, other!, one!] }] }, digits, null);
    expect(y).toHaveLength(2);
  });

  test("are taken up to the last: one more pushes no other one out", async () => {
    seen();
    const few = { ...digits, input: { ...digits.input, shape: [1, 1, 1] } };
    const all = [...bright(...Array.from({ length: 256 }, (_, i) => i)), ...Array<File>(20_000).fill(bright(20)[0]!)];
    const { y, summary } = await loaded({ kind: "images", classes: [{ label: 1, files: all }, { label: 2, files: bright(30) }] }, few, null);
    expect([y.length, y.at(-1), summary.notes.length]).toEqual([129, 2, 1]); // a bright one is the same as a dark one
  });

  test("need a federation that learns from pictures, and a class that there is", async () => {
    await expect(room.load({ kind: "images", classes: [] }, table, null)).rejects.toThrow(/learns from tables/);
    await expect(room.load({ kind: "images", classes: [{ label: 10, files: files("a.png") }] }, digits, null)).rejects.toThrow(/class 10 is none/);
  });

  test("drawn in the page come at the task's size and in its brightness", async () => {
    const pixels = new Uint8Array(16 * 16);
    pixels.fill(255, 0, 8 * 16); // the upper half
    const { x, y } = await loaded({ kind: "drawings", drawings: [{ label: 3, width: 16, height: 16, pixels }] }, digits, null);
    expect([...y]).toEqual([3]);
    expect([...x]).toEqual([...Array(32).fill(1), ...Array(32).fill(0)]);
    expect([...pictureToRecord({ width: 16, height: 16, pixels }, digits)]).toEqual([...x]);
    expect((await loaded({ kind: "drawings", drawings: [] }, digits, null)).summary.records).toBe(0);
  });

  test("change their size without changing their mean", () => {
    const pixels = Float32Array.from({ length: 15 }, (_, i) => i);
    const small = resized({ channels: 1, width: 5, height: 3, pixels }, 2, 2);
    expect(small.reduce((sum, v) => sum + v, 0) / 4).toBeCloseTo(7, 5);
    expect([...resized({ channels: 1, width: 2, height: 1, pixels: [0, 100] }, 4, 2)]).toEqual([0, 0, 100, 100, 0, 0, 100, 100]);
    expect(hasBrightEdge([255, 255, 255, 255, 0, 255, 255, 255, 255], 3, 3)).toBe(true);
    expect(hasBrightEdge([0, 0, 0, 0, 255, 0, 0, 0, 0], 3, 3)).toBe(false);
  });
});

describe("the federation's sample", () => {
  const given = { client: 2, count: 1, shape: [1, 8, 8], dtype: "u8", x: Buffer.alloc(64, 8).toString("base64"), y: "Bw==", about: "Public." };
  const place = { server: "http://here", federation: "webfed-digits", client: 2 };

  test("is fetched for the slot, and normalised", async () => {
    const fetched = vi.fn(async (_: string) => Response.json(given));
    vi.stubGlobal("fetch", fetched);
    const { x, y, summary } = await loaded({ kind: "sample" }, digits, place);
    expect(fetched.mock.calls[0]![0]).toBe("http://here/api/federations/webfed-digits/sample?client=2");
    expect([x[0], y[0], summary.notes]).toEqual([0.5, 7, ["Public."]]);
  });

  test("with a number that is none is refused", async () => {
    const x = Buffer.from(new Float32Array(64).fill(NaN).buffer).toString("base64");
    vi.stubGlobal("fetch", async () => Response.json({ ...given, dtype: "f4", x }));
    await expect(room.load({ kind: "sample" }, digits, place)).rejects.toThrow(/does not fit its own task/);
  });

  test("that does not fit the task is refused, and so is one that is not there", async () => {
    vi.stubGlobal("fetch", async () => Response.json({ ...given, shape: [1, 28, 28] }));
    await expect(room.load({ kind: "sample" }, digits, place)).rejects.toThrow(/does not fit its own task/);
    vi.stubGlobal("fetch", async () => Response.json({ error: "bring your own" }, { status: 404 }));
    await expect(room.load({ kind: "sample" }, digits, place)).rejects.toThrow("bring your own");
  });

  /** A server that sends these pieces, `pause` milliseconds before each, and then nothing any more. */
  const slowly = (pieces: string[], pause: number, end: "ends" | "hangs") =>
    vi.stubGlobal("fetch", async (_: string, { signal }: RequestInit) => {
      const body = new ReadableStream<Uint8Array>({
        async start(stream) {
          signal!.addEventListener("abort", () => stream.error(signal!.reason));
          for (const piece of pieces) {
            await new Promise((resolve) => setTimeout(resolve, pause));
            stream.enqueue(new TextEncoder().encode(piece));
          }
          if (end === "ends") stream.close();
        },
      });
      return new Response(body);
    });
  const settled = async (load: Promise<unknown>) => {
    const end = load.then(() => "loaded", (error: Error) => error.message);
    await vi.advanceTimersByTimeAsync(120_000);
    return Promise.race([end, "still waiting"]);
  };

  test.each([
    ["never begins", async (_: string, { signal }: RequestInit) =>
      new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)))],
    ["stops in the middle", null],
  ])("that %s is given up, with what to do", async (_, answer) => {
    vi.useFakeTimers();
    if (answer) vi.stubGlobal("fetch", answer);
    else slowly(['{"client": 2, '], 10, "hangs");
    expect(await settled(room.load({ kind: "sample" }, digits, place))).toBe(
      "the sample could not be fetched (nothing came for 20 seconds): check your connection, sign in if its network asks for " +
        "that, close other tabs of this server, and try again",
    );
    vi.useRealTimers();
  });

  test("that comes slowly, but comes, is taken", async () => {
    vi.useFakeTimers();
    const text = JSON.stringify(given);
    const pieces = [0, 1, 2, 3].map((k) => text.slice((k * text.length) / 4, ((k + 1) * text.length) / 4));
    slowly(pieces, 15_000, "ends"); // a minute in all
    expect(await settled(room.load({ kind: "sample" }, digits, place))).toBe("loaded");
    vi.useRealTimers();
  });

  test("of a server that cannot be reached, or that breaks off, is refused in words", async () => {
    vi.stubGlobal("fetch", async () => { throw new TypeError("failed to fetch"); });
    await expect(room.load({ kind: "sample" }, digits, place)).rejects.toThrow(/the server cannot be reached.*try again/);
    vi.stubGlobal("fetch", async () => new Response('{"count": 1, '));
    await expect(room.load({ kind: "sample" }, digits, place)).rejects.toThrow(/cannot be read: try again/);
  });
});

describe("records", () => {
  test("are stored in blocks, so that no array limits their number", () => {
    const blocks = new Blocks(3, 7); // two records each
    for (let i = 0; i < 5; i += 1) blocks.add(Float32Array.of(i, i, i), i);
    const all = blocks.end();
    expect(all.map(({ x }) => [...x])).toEqual([[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3], [4, 4, 4]]);
    expect(all.map(({ y }) => [...y])).toEqual([[0, 1], [2, 3], [4]]);
    expect(new Blocks(3, 2).end()).toEqual([]);
  });

  test("for which there is no memory are said to be too many, to the person alone", async () => {
    vi.stubGlobal("Float32Array", class { constructor() { throw new RangeError("Array buffer allocation failed"); } });
    await expect(load("a,b,class\n3,20,yes\n")).rejects.toThrow(/no memory left for your examples/);
  });
});
