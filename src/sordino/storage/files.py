"""Files that survive a crash and a full disk: a whole file is replaced at once, a line is added whole or not at all.

And a lock that keeps a second process out of a folder, and ends with the process that holds it.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sordino.errors import InvalidInput, SordinoError

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]

_BINARY = getattr(os, "O_BINARY", 0)  #: one system would otherwise translate line ends
_DRAFT = re.compile(r"\..+\.[0-9a-f]{12}\.draft")


class NotWritten(SordinoError):
    """A file could not be written (disk full, read-only, gone); what was there before is unchanged."""


class InUse(SordinoError):
    """Another process holds a lock."""


# --- one process at a time --------------------------------------------------------------------------------------------


@contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock that the file at `path` stands for; where another process does, `InUse` says so of `what`.

    The lock is the system's (flock), not the file: it ends with its process, however that ends, and a file that a
    killed one left behind locks nothing. Where there are no such locks, the file itself is the lock: one that a killed
    process left behind keeps others out until a person removes it.
    """
    try:
        descriptor = _locked(path, what)
    except OSError as error:
        raise NotWritten(f"{path} could not be made ({_reason(error)}): give a folder that can be written to") from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: whoever has opened it by now finds that it is gone, and makes a new one
        if descriptor is not None:
            os.close(descriptor)


def _locked(path: Path, what: str) -> int | None:
    """The open file, locked, and still the one at `path`, since its last holder may just have removed it.

    None where there are no locks, and the file was not there before.
    """
    while True:
        descriptor, new = _opened(path)
        kept = False
        try:
            if not _lock(descriptor):
                if not new:
                    raise _in_use(descriptor, what, f", or remove {path} if that process has ended: locks are missing")
                _sign(descriptor)
                return None
            with suppress(FileNotFoundError):
                kept = os.path.samestat(os.fstat(descriptor), path.stat())
            if kept:
                _sign(descriptor)
                return descriptor
        except BlockingIOError:
            raise _in_use(descriptor, what) from None
        finally:
            if not kept:
                os.close(descriptor)


def _opened(path: Path) -> tuple[int, bool]:
    """The open file, and whether it is new."""
    how = os.O_RDWR | _BINARY
    for _ in range(1000):  # holders that let go just now; a link to nothing is both there and not there for ever
        try:
            return os.open(path, how | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            with suppress(FileNotFoundError):  # its holder has just let go, and it may be made anew
                return os.open(path, how), False
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _lock(descriptor: int) -> bool:
    """Lock an open file; False where the system or the file system has no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _in_use(descriptor: int, what: str, else_: str = "") -> InUse:
    holder = os.read(descriptor, 200).decode(errors="replace").strip()
    return InUse(
        f"another process is running {what}{f' ({holder})' if holder else ''}, and two would spoil it. Wait until "
        f"it is done, or stop it first{else_}"
    )


def _sign(descriptor: int) -> None:
    """Who holds a lock: that helps others to find it, and is not what keeps them out."""
    with suppress(OSError), open(descriptor, "r+b", closefd=False) as file:
        file.truncate()
        file.write(f"process {os.getpid()} on {platform.node()}\n".encode())


# --- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path, remedy: str = "restore it from a backup") -> Iterator[None]:
    """Raise whatever is wrong with a file that is read inside as `InvalidInput`, with the remedy."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        state = "damaged" if path.exists() else "missing"
        raise InvalidInput(f"{path} is {state} ({error}): {remedy}") from None


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, durably, unless they are there; where there is no room for it, say so."""
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(mode, parents=True, exist_ok=True)
        for each in reversed(missing):
            sync_folder(each.parent)
    except OSError as error:
        raise NotWritten(
            f"the folder {folder} could not be made ({_reason(error)}): make room, or choose another folder"
        ) from None


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable; not every system lets a folder be opened, and those need no such step."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put `data` in place of the file at `path`, all or nothing: a reader sees the old bytes or the new ones.

    The file has `mode`, less what the process's mask takes away, from its first byte on.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.draft")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        kept = "the file that was there is unchanged" if path.exists() else "no part of it was left behind"
        raise NotWritten(
            f"{path} could not be written ({_reason(error)}). Nothing that was on disk is lost: {kept}. "
            "Make room (or write elsewhere) and do it again"
        ) from None


def is_draft(path: Path) -> bool:
    """Whether a file is one that `write_whole` had not finished."""
    return _DRAFT.fullmatch(path.name) is not None


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder; only for who holds its lock."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_draft(path):
            with suppress(OSError):
                path.unlink()


def append_line(path: Path, line: bytes) -> None:
    """Add one line to a file of lines, durable on return; a torn last line of an earlier crash is cut off first."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o666)
        try:
            whole = _after_line_end(path, path.stat().st_size)
            os.ftruncate(descriptor, whole)
            _append_or_restore(descriptor, whole, line + b"\n")
        finally:
            os.close(descriptor)
        sync_folder(path.parent)
    except OSError as error:
        raise NotWritten(
            f"a line could not be added to {path} ({_reason(error)}). Nothing that was on disk is lost: "
            "the lines before it are unchanged. Make room and go on from there"
        ) from None


def whole_lines(path: Path) -> list[bytes]:
    """The lines that were written to their end; a torn last one is left out, and a missing file has none."""
    if not path.exists():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    return lines


def last_line(path: Path) -> bytes | None:
    """The last line that was written to its end, found without reading those before it; none in an empty file."""
    end = _after_line_end(path, path.stat().st_size) if path.exists() else 0
    if end == 0:
        return None
    start = _after_line_end(path, end - 1)
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - 1 - start)


def keep_lines(path: Path, count: int) -> None:
    """Cut a file of lines off after the first `count`, durably."""
    kept = whole_lines(path)[:count]
    if not path.exists():
        return
    try:
        descriptor = os.open(path, os.O_RDWR | _BINARY)
        try:
            os.ftruncate(descriptor, sum(len(line) + 1 for line in kept))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NotWritten(f"{path} could not be shortened ({_reason(error)}); it is unchanged") from None


def _append_or_restore(descriptor: int, length: int, data: bytes) -> None:
    os.lseek(descriptor, length, os.SEEK_SET)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, length)
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _after_line_end(path: Path, before: int) -> int:
    """Where the last line that ends within the first `before` bytes ends; read from the back, as such files grow."""
    block = 4096
    with path.open("rb") as file:
        for end in range(before, 0, -block):
            start = max(0, end - block)
            file.seek(start)
            if (found := file.read(end - start).rfind(b"\n")) >= 0:
                return start + found + 1
    return 0


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


__all__ = [
    "InUse", "NotWritten", "append_line", "exclusive_lock", "is_draft", "keep_lines", "last_line", "make_folder",
    "reading", "remove_drafts", "sync_folder", "whole_lines", "write_whole",
]  # fmt: skip
