"""The relay in Flower's `ServerApp`: it carries bytes between nodes and the coordinator's own process. Nothing else.

It holds no key, no recipe and no run: whoever can start apps on the server finds nothing here that speaks for the
coordinator. Where the coordinator listens is a setting of the run (`coordinator`, the socket's whole path).
"""

from __future__ import annotations

from pathlib import Path

from sordino.errors import InvalidInput
from sordino.flower import require
from sordino.flower.relay import relay

require()

from flwr.app import Context  # noqa: E402 (after what says that it is missing)
from flwr.serverapp import Grid, ServerApp  # noqa: E402

COORDINATOR = "coordinator"  #: the setting of the run that names the coordinator's socket

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the coordinator until its federation is over."""
    from sordino.flower.grid import GridCarrier

    path = Path(str(context.run_config.get(COORDINATOR, "")))
    if not path.is_absolute():
        raise InvalidInput(
            f"the run does not say where its coordinator listens: flwr run APP --run-config \"{COORDINATOR}='/whole/"
            "path/of/coordinator.sock'\""
        )
    relay(GridCarrier(grid), path, context.run_id)
    print("the coordinator has finished")


__all__ = ["COORDINATOR", "app"]
