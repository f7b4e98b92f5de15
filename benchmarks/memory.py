"""The most memory that a measured process has taken."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def own_peak() -> int:
    """Bytes that this process took at most so far.

    `ru_maxrss` is only the second choice: on Linux a process starts with what its parent had there.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
