/** The training worker. */
import { TrainingRoom } from "../learning/room.ts";
import { serve } from "./rpc.ts";

let told = 0;
const room = new TrainingRoom((step, steps, doing = "training") => {
  const now = performance.now();
  if (step < steps && now - told < 100) return; // ten times a second is enough to see
  told = now;
  tell({ step, steps, doing });
});
const tell = serve({
  open: room.open.bind(room), take: room.take.bind(room), add: room.add.bind(room), train: room.train.bind(room), stop: room.stop.bind(room),
  predict: room.predict.bind(room),
});
