/** The data worker. */
import { DataRoom, type Loaded } from "./data.ts";
import { serve } from "./rpc.ts";

const room = new DataRoom();
serve({ load: room.load.bind(room) }, undefined, ({ blocks }: Loaded) => blocks.flatMap(({ x, y }) => [x.buffer, y.buffer]));
