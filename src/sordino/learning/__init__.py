"""What clients learn from and with: data sets, their split among clients, models, and cohorts trained together."""

import os
from pathlib import Path


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


# Intel's MKL, with which PyTorch multiplies, chooses kernels by where arrays lie in memory; on other makers' processors
# their last bits differ. "AUTO" keeps it from that, at no cost that could be measured. It is read at the first product.
# Only that simulations give the same bits at every width needs it; what is proven does not (`sordino.learning.alone`).
if not _is_intel():
    os.environ.setdefault("MKL_CBWR", "AUTO")
