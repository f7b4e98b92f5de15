"""`audit(folder)`: the audit of a whole run, and its place in the run's statement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sordino.audits import linear_heads, randomised_records, silos, trusted_server, uploads
from sordino.audits.findings import AuditOptions, Findings
from sordino.audits.finished_run import FinishedRun
from sordino.audits.lower_bound import VIOLATED, AuditRow
from sordino.learning.private_sgd import PrivateTraining
from sordino.methods.central_dp import CentralDp
from sordino.methods.chamikara_ldpfl import Ldpfl
from sordino.methods.local_only import LocalOnly
from sordino.methods.private_head import PrivateHead
from sordino.privacy.guarantee import Adjacency, Adversary
from sordino.privacy.history import ranges
from sordino.privacy.statement import AuditBound, Statement
from sordino.privacy.statement import Row as Stated
from sordino.report.folder import RunFolder, alone
from sordino.report.records import to_page
from sordino.report.statement import to_json
from sordino.runs.execution import one_thread
from sordino.storage.files import write_whole

FILE = "audit.json"  #: in the run's folder: the last audit's rows, with seeds and caps


@dataclass(frozen=True, eq=False)
class Audit:
    """What was found about a run, and its statement with it."""

    run: FinishedRun
    found: Findings
    statement: Statement

    @property
    def rows(self) -> tuple[AuditRow, ...]:
        """All rows of the table."""
        return self.found.rows

    @property
    def violated(self) -> bool:
        """Whether an experiment contradicts a proof: then something is wrong, and the statement is left as it was."""
        return any(row.verdict == VIOLATED for row in self.rows) or not all(i.passed for i in self.found.inspected)

    @property
    def whom(self) -> str:
        """The clients that the audit is about."""
        members = self.found.group.clients
        return f"client{'s' if len(members) > 1 else ''} {ranges(members)}"

    def to_json(self) -> dict[str, object]:
        """Everything, ready for `json.dumps`."""
        return {
            "run": str(self.run.folder.path),
            "clients": self.whom,
            "rows": [row.to_json() for row in self.rows],
            "checks": [inspected.to_json() for inspected in self.found.inspected],
            "not_audited": list(self.found.left_out),
            "violated": self.violated,
            "statement": to_json(self.statement),
        }

    def write(self) -> None:
        """Put the evidence into the run's statement and its page, and the rows into a file of their own."""
        folder = self.run.folder
        with alone(folder.path):
            from sordino.report.page import report_page

            packed = {name: value for name, value in self.to_json().items() if name not in ("run", "statement")}
            write_whole(folder.path / FILE, to_page(packed).encode())
            folder.write_statement(self.statement)
            folder.write_report(report_page(folder))


def audit(path: Path | str, asked: AuditOptions | None = None, *, data: object = None) -> Audit:
    """Audit a finished run; nothing is written (`Audit.write` does that). `data` is what `sordino.run` was handed."""
    wanted = AuditOptions() if asked is None else asked
    with one_thread():
        run = FinishedRun.open(path, data)
        found = _found(run, wanted)
    return Audit(run, found, _with_evidence(run, found))


def _found(run: FinishedRun, asked: AuditOptions) -> Findings:
    """The kind of audit that fits the method: what it releases, and to whom."""
    method = run.federation.method
    if isinstance(method, LocalOnly):
        return Findings(run.group_of(asked.client), (), ("nothing: no report left any client",))
    if isinstance(method, CentralDp):
        return trusted_server.audit(run, asked)
    if isinstance(method, Ldpfl):
        return randomised_records.audit(run, asked)
    if isinstance(method, PrivateHead):
        return linear_heads.audit(run, asked)
    if isinstance(method.training, PrivateTraining):
        return silos.audit(run, asked)
    return uploads.audit(run, asked)


def _with_evidence(run: FinishedRun, found: Findings) -> Statement:
    """The statement with what was found, and with what earlier audits found about other rows."""
    earlier = _earlier(run.folder)
    who = run.who(found.group)
    fresh = {f.view: f.row.evidence() for f in found.findings if f.view is not None and f.row.verdict != VIOLATED}

    def audited(row: Stated) -> AuditBound | None:
        if row.who == who and (row.adversary, row.adjacency) in fresh:
            return fresh[row.adversary, row.adjacency]
        return earlier.get(_key(row))

    statement = run.statement
    return replace(statement, rows=tuple(replace(row, audited=audited(row)) for row in statement.rows))


Key = tuple[tuple[str, ...], Adversary, Adjacency]


def _key(row: Stated) -> Key:
    return row.clients, row.adversary, row.adjacency


def _earlier(folder: RunFolder) -> dict[Key, AuditBound]:
    """What the statement in the folder shows already."""
    statement = folder.statement()
    rows = () if statement is None else statement.rows
    return {_key(row): row.audited for row in rows if row.audited is not None}
