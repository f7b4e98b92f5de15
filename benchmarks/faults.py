"""How many of a hundred seeds catch each planted fault, and which check finds it (docs/checks.md).

    python -m benchmarks.faults [--only WORDS] [--seeds 100]

Each fault is recorded in benchmarks/results/faults.json as soon as it is done, so that the whole (about 25 minutes on
one core) may be done in parts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from sordino.audits.faults import FAULTS, Fault, attempt

RESULTS = Path(__file__).parent / "results" / "faults.json"


def measured(fault: Fault, seeds: int) -> dict[str, object]:
    """How often a fault is caught, and by which check most often first."""
    began, caught, first = time.monotonic(), 0, Counter[str]()
    for seed in range(1, seeds + 1):
        found = attempt(fault, seed)
        caught += found.caught
        first.update(look.check for look in found.looks[:1])
    by = first.most_common(1)[0][0] if first else "nothing"
    print(f"{fault.name}: {caught} of {seeds}, {by}, {time.monotonic() - began:.0f} s", flush=True)
    return {"fault": fault.name, "breaks": fault.breaks, "by": by, "caught": caught, "seeds": seeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults with these words in their names")
    parser.add_argument("--seeds", type=int, default=100)
    options = parser.parse_args()
    found = {row["fault"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    for fault in FAULTS:
        if options.only in fault.name:
            found[fault.name] = measured(fault, options.seeds)
            rows = [found[one.name] for one in FAULTS if one.name in found]
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
