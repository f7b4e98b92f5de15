"""The errors a user can meet; each message says what was given, what is allowed and what to do."""


class SordinoError(Exception):
    """Anything Sordino refuses to do."""


class InvalidInput(SordinoError, ValueError):
    """A value outside what is allowed: wrong shape, dtype, range or name."""


class UnsupportedLoss(SordinoError):
    """The accountant does not know how to account for this: unknown is refused, never guessed."""


class NotAllowed(SordinoError):
    """The ledger's owner has not allowed the release: `why`, and the `command` that would allow it.

    `dataset` is the name of the account that refuses, and `what` the kind of release that lacks consent.
    """

    def __init__(self, why: str, command: str = "", what: str | None = None, dataset: str = "") -> None:
        super().__init__(f"{why}: {command}" if command else why)
        self.why, self.command, self.what, self.dataset = why, command, what, dataset


class BudgetExceeded(NotAllowed):
    """The release would exceed the owner's budget; nothing was recorded and nothing may leave."""


class ConsentMissing(NotAllowed):
    """The release has no proof, or asks for claimed accounting, and its owner has not allowed that."""


class LedgerDamaged(SordinoError):
    """The ledger file was torn, edited or is not a ledger; nothing is released until its owner has looked."""


class LedgerUnavailable(SordinoError):
    """The ledger could not be written (disk full, locked, read-only); nothing may leave."""


class ReportCompacted(SordinoError):
    """This plan was answered before, and only the hash of that report is kept: it cannot be sent or drawn again."""


class Ended(BaseException):
    """Raised inside a computation to end it from outside; no `except Exception` stops it."""


#: what ends a computation from outside; whatever else is raised at one record is that record's failure alone
STOPPING = (KeyboardInterrupt, Ended)


class BoundViolated(SordinoError):
    """An attack was right more often than a proof allows: the mechanism, the proof or the attack has a bug."""
