/** The privacy worker: one of them at a time in a browser, whichever tabs are open. */
import { Ledger } from "../privacy/ledger.ts";
import { LOCK, type Opening, PrivacyRoom } from "../privacy/privacy.ts";
import { Refused } from "../wire/refusal.ts";
import { serve } from "./rpc.ts";

let opening: Promise<PrivacyRoom> | null = null;

async function room(): Promise<PrivacyRoom> {
  opening ??= alone().then(async () => new PrivacyRoom(await Ledger.open()));
  return opening;
}

/** Holds the lock until this worker ends. A page that was just reloaded may hold it for a moment longer. */
async function alone(): Promise<void> {
  if (!navigator.locks) {
    throw new Refused("this browser cannot keep two tabs apart, so the page's ledger would not be safe: use a newer browser, over HTTPS");
  }
  for (let attempt = 0; attempt < 12; attempt += 1) {
    if (await held()) return;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  opening = null;
  throw new Refused(
    "you take part in another tab of this browser already: go on there, or close that tab and reload this one. Both share one budget",
  );
}

function held(): Promise<boolean> {
  return new Promise((resolve, reject) => {
    navigator.locks
      .request(LOCK, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        return lock === null ? undefined : new Promise(() => {});
      })
      .catch(reject);
  });
}

serve({
  open: async (given: Opening) => (await room()).open(given),
  identity: async () => (await room()).identity(),
  welcome: async (client: number, rotations: readonly string[]) => (await room()).welcome(client, rotations),
  isSigned: async (step: string, payload: Uint8Array<ArrayBuffer>) => (await room()).isSigned(step, payload),
  judge: async (step: string, payload: Uint8Array<ArrayBuffer>) => (await room()).judge(step, payload),
  release: async (trained: Float32Array | Float64Array | null, records: number, order: Int32Array | null) => (await room()).release(trained, records, order),
  forgo: async () => (await room()).forgo(),
  mark: async (round: number, sent: "sent" | "received") => (await room()).mark(round, sent),
  budget: async () => (await room()).budget(),
  ledger: async () => (await room()).ledger(),
});
