"""Files that survive a crash and a full disk: a whole file is replaced at once, a line is added whole or not at all.

And a lock that keeps a second process out of a folder, and ends with the process that holds it.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sordino.errors import SordinoError

try:
    import fcntl
except ImportError:  # a system without such locks: there, nobody is kept out
    fcntl = None  # type: ignore[assignment]

_BINARY = getattr(os, "O_BINARY", 0)  #: one system would otherwise translate line ends
_DRAFT = re.compile(r"\..+\.[0-9a-f]{12}\.draft")


class NotWritten(SordinoError):
    """A file could not be written (disk full, read-only, gone); what was there before is unchanged."""


class InUse(SordinoError):
    """Another process holds a lock."""


# --- one process at a time --------------------------------------------------------------------------------------------


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold the lock that the file at `path` stands for; where another process does, `InUse` says so of `what`.

    The lock is the system's (flock), not the file: it ends with its process, however that ends, and a file that a
    killed one left behind locks nothing. A file system without such locks keeps nobody out.
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
        os.close(descriptor)


def _locked(path: Path, what: str) -> int:
    """The open file, locked, and still the one at `path`: its last holder may just have removed it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o666)
        try:
            _lock(descriptor, what)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, what: str) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        raise InUse(
            f"another process is running {what}{f' ({holder})' if holder else ''}, and two would spoil it. Wait until "
            "it is done, or stop it first"
        ) from None
    except OSError:
        return
    with suppress(OSError):  # who it is helps others to find it, and is not what keeps them out
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)


# --- files ------------------------------------------------------------------------------------------------------------


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` in place of the file at `path`, all or nothing: a reader sees the old bytes or the new ones."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.draft")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        _settle(path.parent)
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
        _settle(path.parent)
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


def _settle(folder: Path) -> None:
    """Make a new name durable; not every system lets a folder be opened, and those need no such step."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


__all__ = [
    "InUse", "NotWritten", "append_line", "held", "is_draft", "keep_lines", "last_line", "remove_drafts", "whole_lines",
    "write_whole",
]  # fmt: skip
