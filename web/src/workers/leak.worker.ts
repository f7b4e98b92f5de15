/** The worker that attacks reports before joining. It has no ledger, and what it makes goes to the page alone. */
import { LeakRoom } from "../privacy/leak.ts";
import { serve } from "./rpc.ts";

const room = new LeakRoom();
serve({ open: room.open.bind(room), attack: room.attack.bind(room) });
