"""What another account on this machine can reach: the system's own rule, walked from the root down."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LocalAccount:
    """An account, with its groups."""

    name: str
    user: int
    groups: frozenset[int]

    @classmethod
    def owning(cls, path: Path) -> LocalAccount:
        """The account that a file or folder belongs to."""
        import pwd

        number = path.stat().st_uid
        try:
            return cls.named(pwd.getpwuid(number).pw_name)
        except KeyError:
            return cls(str(number), number, frozenset())

    @classmethod
    def named(cls, name: str) -> LocalAccount:
        """The account of a name; `KeyError` where there is none."""
        import grp
        import pwd

        found = pwd.getpwnam(name)
        others = {group.gr_gid for group in grp.getgrall() if name in group.gr_mem}
        return cls(name, found.pw_uid, frozenset({found.pw_gid, *others}))

    def may(self, path: Path, wanted: int) -> bool:
        """Whether its permissions let the account do this; `wanted` is of 4 (read), 2 (write) and 1 (enter)."""
        if self.user == 0:
            return True
        found = path.stat()
        shift = 6 if found.st_uid == self.user else 3 if found.st_gid in self.groups else 0
        return stat.S_IMODE(found.st_mode) >> shift & wanted == wanted

    def obstacle(self, path: Path, wanted: int) -> Path | None:
        """The first folder on the way, or the file itself, that keeps the account out; None where nothing does."""
        whole = path.absolute()
        for folder in reversed(whole.parents):
            if not self.may(folder, 1):
                return folder
        return None if self.may(whole, wanted) else whole


__all__ = ["LocalAccount"]
