/** The workers of a page, as the session calls them: three that take part, and one that attacks reports before joining. */
import type { TrainingRoom } from "../learning/room.ts";
import type { Doing, Progress } from "../learning/training.ts";
import type { LeakRoom } from "../privacy/leak.ts";
import type { PrivacyRoom } from "../privacy/privacy.ts";
import type { DataRoom } from "../workers/data.ts";
import { type Connection, type Remote, connect } from "../workers/rpc.ts";

type Data = Pick<DataRoom, "load">;
type Training = Pick<TrainingRoom, "open" | "take" | "add" | "train" | "stop" | "predict">;
type Privacy = Pick<PrivacyRoom, "open" | "identity" | "welcome" | "isSigned" | "judge" | "release" | "forgo" | "mark" | "budget" | "ledger">;

export interface Rooms {
  data: Remote<Data>;
  training: Remote<Training>;
  privacy: Remote<Privacy>;
  close(): void;
}

/** Workers of this page's own; `onStep` hears how far training is. */
export function openRooms(onStep: Progress): Rooms {
  const data = dataRoom();
  const training = trainingRoom(onStep);
  const privacy: Connection<Privacy> = connect(
    new Worker(new URL("../workers/privacy.worker.ts", import.meta.url), { type: "module", name: "privacy" }),
  );
  return {
    data: data.remote, training: training.remote, privacy: privacy.remote,
    close: () => [data, training, privacy].forEach((connection) => connection.close()),
  };
}

export function trainingRoom(onStep: Progress = () => {}): Connection<Training> {
  return connect(
    new Worker(new URL("../workers/training.worker.ts", import.meta.url), { type: "module", name: "training" }),
    ({ step, steps, doing }: { step: number; steps: number; doing: Doing }) => onStep(step, steps, doing),
  );
}

export function dataRoom(): Connection<Data> {
  return connect(new Worker(new URL("../workers/data.worker.ts", import.meta.url), { type: "module", name: "data" }));
}

export function leakRoom(): Connection<Pick<LeakRoom, "open" | "attack">> {
  return connect(new Worker(new URL("../workers/leak.worker.ts", import.meta.url), { type: "module", name: "leak" }));
}
