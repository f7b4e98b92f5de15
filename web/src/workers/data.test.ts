import { afterEach, describe, expect, test, vi } from "vitest";
import { tasks } from "../golden.ts";
import { readTask, type Task } from "../wire/task.ts";
import { DataRoom, columnsOf, pictureToRecord } from "./data.ts";
import { hasBrightEdge, resized } from "./pictures.ts";
import { type Reading, mostRecords } from "./table.ts";

const digits: Task = { ...tasks["webfed-digits"], input: { ...tasks["webfed-digits"].input, largest: 16 } };
const table: Task = { ...digits, input: { shape: [2], mean: [1, 10], std: [2, 5], kind: "features" }, classes: ["no", "yes"] };
const room = new DataRoom();
const csv = (text: string, name = "mine.csv") => new File([text], name);
const load = (text: string, task = table, reading: Reading = {}) => room.load({ kind: "csv", file: csv(text), ...reading }, task, null);

afterEach(() => vi.unstubAllGlobals());

describe("a table", () => {
  test.each([
    ["a,b,class\n3,20,yes\n-1,0,no\n", {}],
    ["3;20;yes\r\n-1;0;no", { headerless: ";" }],
    ["\ufeff3\t20\tYES\n\n-1\t0\t0\n", { headerless: "\t" }],
  ] as const)("is read with a header, or as its owner says, and normalised by the task's constants: %j", async (text, reading) => {
    const { x, y, summary } = await load(text, table, reading);
    expect([...x]).toEqual([1, 2, -1, -2]);
    expect([...y]).toEqual([1, 0]);
    expect(summary).toMatchObject({ records: 2, perClass: [1, 1], notes: [] });
  });

  test("may have its class in any column", async () => {
    expect([...(await load('"class",a,b\n"yes",3,20\n')).y]).toEqual([1]);
    expect([...(await load("a,kind,b\n3,yes,20\n", table, { label: 1 })).x]).toEqual([1, 2]);
    expect([...(await load("3,yes,20\n4,no,2\n", table, { label: 1, headerless: "," })).y]).toEqual([1, 0]);
  });

  test.each([
    ["text where a number belongs", "oops,20,no", "line 3, a: \"oops\" is not a number"],
    ["a class that there is not", "3,20,maybe", "line 3: the class \"maybe\" is none of no, yes"],
    ["a class beyond the last", "3,20,2", "the class \"2\" is none"],
    ["too few columns", "3,no", "line 3 has 2 columns, not 3"],
    ["too many columns", "3,20,no,1", "line 3 has 4 columns, not 3"],
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
    const { y, summary } = await room.load({ kind: "csv", file: new File([bytes], "mine.csv") }, table, null);
    expect([...y]).toEqual([1, 0]);
    expect(summary.notes).toHaveLength(1);
  });

  test.each([
    ["nothing", "\n\n", {}, /is empty/],
    ["a header alone", "a,b,class\n", {}, /has a header and no records/],
    ["another number of columns", "a,b,c,class\n1,2,3,yes\n", {}, /4 columns; this federation takes 2 numbers and a class, 3 in all/],
    ["numbers in its first line, where nobody said so", "3,20,1\n4,2,0\n", {}, /numbers where names/],
    ["no line that can be used", "a,b,class\nx,1,yes\n", {}, /no line .* line 2, a/],
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
    await expect(load("3,20,yes\n", named, { headerless: "," })).rejects.toThrow(/age, BMI/);
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
      const { y } = await load(`${first}\n3,20,yes\n4,1,no`, table, { headerless: "," });
      expect([...y]).toEqual([1, 0]);
    }
  });

  test.each([
    ["a usual name", "id,age,Label,BMI\n", named, {}, [0, 2], 2],
    ["the only other column", "age,ill,BMI", named, {}, [1], 1],
    ["several others", "age,ill,BMI,ward", named, {}, [1, 3], null],
    ["columns by position", "a;b;c\n", table, {}, [0, 1, 2], null],
    ["a usual name by position", "y\ta\tb\n", table, {}, [0, 1, 2], 0],
    ["no header", "1,2,yes\n", table, { headerless: "," }, [0, 1, 2], 2],
  ] as const)("says by its first line where the class may be: %s", async (_, text, task, { headerless }: Reading, candidates, label) => {
    expect(await columnsOf(csv(text), task, headerless)).toMatchObject({ candidates, label });
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

  test("is for as many records as the task alone says", () => {
    expect(mostRecords(digits)).toBe(2 ** 30 / 4 / 64);
    expect(mostRecords({ ...digits, input: { ...digits.input, shape: [3, 10_000, 10_000] } })).toBe(1);
  });

  test("names a few lines that it leaves out, and the numbers of the others", async () => {
    const rows = Array.from({ length: 51 }, (_, i) => (i === 20 ? "1,1,no" : "x,1,yes")).join("\n");
    const { summary } = await load(`a,b,class\n${rows}\n1,1,yes`);
    expect(summary.records).toBe(2);
    expect(summary.notes).toEqual([expect.stringMatching(/^50 of 52 lines .*line 2, .*line 3, .*line 4, .*and lines 5-21, 23-52\.$/)]);
  });

  test("of pictures keeps to the brightness that there is", async () => {
    const line = (value: number) => `${Array(64).fill(value).join(",")},7\n`;
    expect([...(await load(line(16), digits, { headerless: "," })).x.slice(0, 2)]).toEqual([1, 1]);
    await expect(load(line(200), digits, { headerless: "," })).rejects.toThrow(/they go from 0 to 16 here/);
  });

  test("of 2 GB is refused before it is read", async () => {
    const huge = { name: "huge.csv", size: 2 * 2 ** 30, arrayBuffer: () => { throw new Error("it was read"); } };
    await expect(room.load({ kind: "csv", file: huge as unknown as File }, table, null)).rejects.toThrow(/"huge.csv" has 2.0 GB; 200 MB are the most/);
  });

  test("that is no text is refused", async () => {
    const file = new File([Uint8Array.of(0xff, 0xfe, 0x00, 0xd8)], "picture.jpg");
    await expect(room.load({ kind: "csv", file }, table, null)).rejects.toThrow(/not a table of text/);
  });
});

describe("pictures", () => {
  const files = (...names: string[]) => names.map((name) => new File(["?"], name));

  test("that cannot be read are left out and named; if none can, that is said", async () => {
    vi.stubGlobal("createImageBitmap", async () => { throw new Error("damaged"); });
    const refused = () => expect(room.load({ kind: "images", classes: [{ label: 1, files: files("a.png", "b.png") }] }, digits, null))
      .rejects.toThrow(/none of these files can be read as a picture \(a.png, b.png\)/);
    await refused();
    vi.stubGlobal("createImageBitmap", async () => ({ width: 1, height: 1 })); // and then it cannot be drawn
    await refused();
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
    const { y, summary } = await room.load({ kind: "images", classes: [{ label: 1, files: bright(9, 20, 9) }, { label: 2, files: bright(9) }] }, digits, null);
    expect([...y]).toEqual([1, 1, 2]);
    expect(summary.notes).toHaveLength(1);
  });

  test("beyond those that a page takes are left out, whatever is in them", async () => {
    seen();
    const damaged = new File([], "damaged.png"); // it has its place as well
    const files = [damaged, ...Array<File>(20_000).fill(bright(20)[0]!), bright(30)[0]!];
    const { y, summary } = await room.load({ kind: "images", classes: [{ label: 1, files }] }, digits, null);
    expect([y.length, summary.notes[0]]).toEqual([1, expect.stringMatching(/first 20,000 .* 2 after/)]);
  });

  test("need a federation that learns from pictures, and a class that there is", async () => {
    await expect(room.load({ kind: "images", classes: [] }, table, null)).rejects.toThrow(/learns from tables/);
    await expect(room.load({ kind: "images", classes: [{ label: 10, files: files("a.png") }] }, digits, null)).rejects.toThrow(/class 10 is none/);
  });

  test("drawn in the page come at the task's size and in its brightness", async () => {
    const pixels = new Uint8Array(16 * 16);
    pixels.fill(255, 0, 8 * 16); // the upper half
    const { x, y } = await room.load({ kind: "drawings", drawings: [{ label: 3, width: 16, height: 16, pixels }] }, digits, null);
    expect([...y]).toEqual([3]);
    expect([...x]).toEqual([...Array(32).fill(1), ...Array(32).fill(0)]);
    expect([...pictureToRecord({ width: 16, height: 16, pixels }, digits)]).toEqual([...x]);
    await expect(room.load({ kind: "drawings", drawings: [] }, digits, null)).rejects.toThrow(/not one record/);
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
    const { x, y, summary } = await room.load({ kind: "sample" }, digits, place);
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
