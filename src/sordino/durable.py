"""Files that survive a crash and a full disk: a whole file is replaced at once, a line is added whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from sordino.errors import SordinoError

_BINARY = getattr(os, "O_BINARY", 0)  #: one system would otherwise translate line ends


class NotWritten(SordinoError):
    """A file could not be written (disk full, read-only, gone); what was there before is unchanged."""


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


__all__ = ["NotWritten", "append_line", "keep_lines", "last_line", "whole_lines", "write_whole"]
