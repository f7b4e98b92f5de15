/** The data worker. */
import { DataRoom } from "./data.ts";
import { serve } from "./rpc.ts";

const room = new DataRoom();
serve({ load: room.load.bind(room) });
