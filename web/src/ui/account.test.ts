import { describe, expect, it } from "vitest";
import { accountsOf, type Own } from "./account.ts";
import type { ServerStatement, StatementRow } from "./api.ts";

const own: Own = { limit: 4, delta: 1e-5, basis: "proven", adjacency: "record-add-remove" };
const row = (adjacency: string, epsilon: StatementRow["proven"]["epsilon"], adversary = "server"): StatementRow => ({
  clients: [], adversary, adjacency, basis: [], claimed: null, proven: { epsilon, delta: 1e-5, unproven: [] }, audited: null, verdict: "",
});
const statement = (...rows: StatementRow[]): ServerStatement => ({ title: "", sentences: [], rows, scope: "schedule" });

describe("the figures for one change", () => {
  it("are the page's own, to rely on, and the server's, which is nowhere called proven", () => {
    const rows = [row("record (add/remove)", 3.48), row("record (replace)", 7.04)];
    const [page, server, ...more] = accountsOf(own, statement(...rows));
    expect(more).toEqual([]);
    expect(page).toMatchObject({ kind: "proven", name: "Counted by this page", figure: "at most 4" });
    expect(page!.words).toContain("figure to rely on");
    expect(server).toMatchObject({ kind: "stated", name: "Stated by the server", figure: "3.48" });
    expect(server!.words).toContain("does not check it");
    expect(`${server!.name} ${server!.words}`).not.toMatch(/prove/);
  });

  it("say what is spent while the page takes part", () => {
    expect(accountsOf({ ...own, spent: 2.651 }, null)).toMatchObject([{ figure: "2.66 so far, at most 4" }]);
  });

  it("of a claim never call it proven, nor something to rely on", () => {
    const [page, server] = accountsOf({ ...own, basis: "claimed" }, statement(row("record-add-remove", 6e5)));
    expect(page).toMatchObject({ kind: "claimed", name: "Counted by this page, as claimed" });
    expect(page!.words).toMatch(/Nothing proves.*do not rely on it/);
    expect(server!.words).not.toContain("lower");
  });

  it("take the server's worst row about the same change and the same onlooker", () => {
    const rows = [row("record-add-remove", 3), row("record-add-remove", 5), row("record-add-remove", 9, "model reader")];
    expect(accountsOf(own, statement(...rows))[1]).toMatchObject({ figure: "5" });
    expect(accountsOf(own, statement(row("client", 3)))).toHaveLength(1);
    expect(accountsOf(own, statement(row("record-add-remove", 3), row("record-add-remove", "infinite")))[1]).toMatchObject({ figure: "infinite" });
  });

  it("are not shown where the page has no bound", () => {
    expect(accountsOf({ ...own, spent: Infinity }, statement(row("record-add-remove", 3)))).toEqual([]);
  });
});
