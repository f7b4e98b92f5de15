"""What a power cut could take away: names that no folder was told to keep (fsync) after they were made."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest


def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], set[str]]:
    """From now on, remember what lay in a folder when it was synced: which names below a folder would be lost."""
    kept: dict[int, set[str]] = {}
    plain = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            kept.setdefault(os.fstat(descriptor).st_ino, set()).update(os.listdir(descriptor))
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return lambda top: {
        path.name for path in top.rglob("*") if path.name not in kept.get(path.parent.stat().st_ino, set())
    }
