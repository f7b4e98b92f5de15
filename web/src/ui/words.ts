/** Figures and guarantees in words that need no training. */

/** Above this, e^epsilon is half a billion: the same line as on the Python side. */
export const NO_MEANINGFUL_PROTECTION = 20;

export function percent(share: number | null | undefined, digits = 1): string {
  return share === null || share === undefined || !Number.isFinite(share)
    ? "not measured"
    : `${(100 * share).toFixed(digits)}\u00a0%`;
}

/** A share at the axis of a chart: `85.5 %`, but `80 %`. */
export function tick(share: number): string {
  return percent(share, Number.isInteger(Math.round(1000 * share) / 10) ? 0 : 1);
}

export function count(number: number): string {
  return Math.round(number).toLocaleString("en-GB");
}

export function counted(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function size(bytes: number): string {
  if (bytes < 1000) return `${bytes} bytes`;
  const kilo = bytes / 1000;
  return kilo < 1000 ? `${kilo < 10 ? kilo.toFixed(1) : Math.round(kilo)} kB` : `${(kilo / 1000).toFixed(1)} MB`;
}

export function duration(seconds: number): string {
  if (seconds < 1) return "less than a second";
  if (seconds < 90) return counted(Math.round(seconds), "second");
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return counted(minutes, "minute");
  const hours = Math.round(minutes / 60);
  return hours < 48 ? counted(hours, "hour") : counted(Math.round(hours / 24), "day");
}

/** How much noise the page adds, in multiples of what the federation asks for. */
export function ownNoise(times: number): string {
  if (times <= 1.001) return "Your page adds the usual noise of this federation.";
  return `Your page adds ${times.toFixed(1)} times the usual noise.`;
}

/** What can be seen of a choice, said before it is made, in short and in full: `classes` of noise, or how many rounds one takes part in. */
export function publicChoice(classes: number): [string, string] {
  const advice = "Choose by what you want, not by what your examples are.";
  if (classes > 1)
    return [
      `Your choice is public: the server can see it. ${advice}`,
      `There are ${spelled(classes)} classes of protection, and which one you take is public: the length of one report shows it to the server. ${advice}`,
    ];
  return [`Your choice is public: the server can see it. ${advice}`, `The server sees in which round your page stops. ${advice}`];
}

/** What a page does when its budget is spent. */
export const DECLINING =
  "your page answers each round with “not this time”, and with nothing about your examples.";

/** How far a budget reaches, and why the first report costs most. */
export function reachWords({ rounds, left, perRound, before }: { rounds: number; left: number; perRound: readonly number[]; before: number }): string {
  const [first = 0, second = first] = perRound;
  const dear = before === 0 && perRound.length > 1 && first > 2 * (second - first);
  const why = dear ? " The first report costs most." : "";
  if (rounds >= left) return `Enough for all ${counted(left, "round")}.${why}`;
  return rounds === 0 ? `Enough for 0 of ${counted(left, "round")}.${why}` : `Enough for ${rounds} of ${counted(left, "round")}; after that, ${DECLINING}${why}`;
}

/** What a class of noise does to the model of `participants`, measured with all of them present: if one takes it, and if
 * all do; `usual` is the federation's own. */
export function noiseEffect(usual: number | null, alone: number | null, all: number | null, participants: number): string {
  if (usual === null || all === null) return "This federation has not measured that. As a rule: the more noise you add, the less everybody's model learns, and the fewer take part, the more your noise counts.";
  if (all === usual) return `If everybody takes this class, the model gets ${percent(all)} of unseen examples right (measured in a rehearsal).`;
  const own = alone === null ? "" : `If you alone of ${spelled(participants)} take this class, the model gets ${percent(alone)} of unseen examples right, instead of ${percent(usual)}; if fewer take part, your noise counts more. `;
  return `${own}If everybody takes it, ${percent(all)} (measured in rehearsals).`;
}

function spelled(number: number): string {
  return ["no", "one", "two", "three", "four", "five", "six"][number] ?? String(number);
}

export type Direction = "up" | "nearest" | "down";

/**
 * An epsilon as it is printed everywhere: few digits, and a word for what is not finite. What is proven or spent is
 * rounded up, what an attack reached down, and a claim to the nearest.
 */
export function epsilon(value: number | null | undefined, direction: Direction = "up"): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "infinite";
  if (value === 0) return "0";
  const whole = value >= 1000 && value < 1e7;
  const step = whole ? 1 : 10 ** (Math.floor(Math.log10(value)) - 2);
  let shown = whole ? Math.round(value) : Number(value.toPrecision(3));
  if (direction === "up" && shown < value * (1 - 1e-9)) shown += step;
  if (direction === "down" && shown > value * (1 + 1e-9)) shown -= step;
  if (shown >= 1e7) return shown.toExponential(2).replace("e+", "e");
  return shown >= 1000 ? count(shown) : String(Number(shown.toPrecision(3)));
}

export function delta(value: number): string {
  if (value === 0) return "0";
  if (value >= 1e-3) return String(value);
  const power = Math.floor(Math.log10(value) + 1e-9);
  const digit = Math.ceil(value / 10 ** power - 1e-9); // a bound is rounded up
  return digit < 10 ? `${digit}e${power}` : `1e${power + 1}`;
}

/** How often the best guess between two equally likely cases can be right: (e^eps + delta) / (e^eps + 1). */
export function surest(value: number, slack = 0): number {
  return Math.min(1, (1 + slack * Math.exp(-value)) / (1 + Math.exp(-value)));
}

/** `99.3 times in 100`: rounded up, since it is a bound, with as many digits as keep it below a certainty. */
export function inHundred(share: number): string {
  const figure = 100 * share;
  if (figure >= 99.9999) return "practically 100 times in 100";
  const digits = figure < 95 ? 0 : Math.max(1, -Math.floor(Math.log10(100 - figure)));
  return `${(Math.ceil(figure * 10 ** digits - 1e-6) / 10 ** digits).toFixed(digits)} times in 100`;
}

export const CASES: Record<string, [string, string]> = {
  "record-add-remove": ["one particular example is among yours or not", "one particular example"],
  "record-replace": ["one of your examples is this one or another", "one of your examples"],
  label: ["one of your examples has this label or another", "the label of one example"],
  client: ["your data are these or any others", "all of your data"],
  coordinate: ["one single number of one upload was this or another", "one single number of one upload"],
};

/** What a limit on epsilon means, for somebody who has never heard of it. */
export function meaning(value: number, adjacency: string, slack = 0): string {
  const [question, thing] = CASES[adjacency] ?? CASES["client"]!;
  if (!(value <= NO_MEANINGFUL_PROTECTION)) {
    return `No meaningful protection: whoever sees everything this page sends may become certain about ${thing}.`;
  }
  return (
    `Somebody who wants to know whether ${question}, and has no idea, is right 50 times in 100. After seeing ` +
    `everything this page ever sends, they can be right at most ${inHundred(surest(value, slack))}.`
  );
}

/** Above this, delta is no small chance that is left over, but a way for everything to leave. */
const LARGEST_SLACK = 0.01;

/** How strong that is, in a word. */
export function strength(value: number, adjacency = "client", slack = 0): { word: string; kind: "good" | "warn" | "bad" } {
  if (!(value <= NO_MEANINGFUL_PROTECTION && slack <= LARGEST_SLACK)) return { word: "no meaningful protection", kind: "bad" };
  if (adjacency === "coordinate") return { word: "protection of one number, not of a person", kind: "warn" };
  if (value <= 1) return { word: "strong protection", kind: "good" };
  if (value <= 3) return { word: "good protection", kind: "good" };
  if (value <= 6) return { word: "limited protection", kind: "warn" }; // a guess may be right 95 to 99.8 times in 100
  return { word: "weak protection", kind: "warn" };
}

/** Whose data are spoken of: those of the reader, or of any participant. */
export type Whose = "yours" | "theirs";

/** What may change, in words. */
export function change(adjacency: string, whose: Whose = "yours"): string {
  const example = whose === "yours" ? "one of your examples" : "one example of a participant";
  const all = whose === "yours" ? "everything you send" : "everything that a participant sends";
  const words: Record<string, string> = {
    client: all,
    "record-replace": `${example} exchanged for another`,
    "record (replace)": `${example} exchanged for another`,
    "record-add-remove": `${example} added or removed`,
    "record (add/remove)": `${example} added or removed`,
    label: `the label of ${example}`,
    coordinate: "one single number of one upload",
  };
  return words[adjacency] ?? adjacency;
}

/** What an epsilon is about, without which none is shown: on which basis, for which change, against whom, at which delta. */
export function terms(about: { basis: string; adjacency: string; delta: number }): string {
  return `${about.basis}, for ${change(about.adjacency)}, against the server, at delta ${delta(about.delta)}`;
}

/** Browsers keep the storage of each address apart, and so the ledger. */
export const ADDRESSES = "Other addresses are counted by themselves.";

/** Beside a figure that the browser may forget. */
export const FLEETING = "This budget lasts only as long as your browser keeps this site's data: it has not promised to.";

/** What this browser has told before, in terms that no choice changes; nothing where that is nothing. */
export function spentBefore(before: number, budget: { limit: number; basis: string; adjacency: string; delta: number }): string {
  if (!(before > 0)) return "";
  return Number.isFinite(before)
    ? `Spent before in this browser at this address: epsilon ${epsilon(before)}, beside a limit of ${epsilon(budget.limit)} (${terms(budget)}). ${ADDRESSES}`
    : `What you have told from this browser at this address before has no bound (${terms(budget)}). ${ADDRESSES}`;
}

/** Who is looking, in words. */
export function onlooker(adversary: string, whose: Whose = "yours"): string {
  const sender = whose === "yours" ? "you send" : "they send";
  const words: Record<string, string> = {
    server: `the server, which sees everything ${sender} and may be curious`,
    "model reader": "somebody who only reads the published model",
  };
  return words[adversary] ?? adversary;
}

/** A name such as `webfed-digits` as a title; what is a title already stays as it is. */
export function titled(name: string): string {
  if (name.includes(" ")) return name;
  const words = name.split("-").map((word) => (word === "webfed" ? "WebFed" : word === "mnist" ? "MNIST" : word));
  const text = words.join(" ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function listed(words: readonly string[], joint: "and" | "or" = "and"): string {
  if (words.length < 2) return words[0] ?? "";
  return `${words.slice(0, -1).join(", ")} ${joint} ${words[words.length - 1]}`;
}

export function clock(time: number): string {
  return new Date(time).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}
