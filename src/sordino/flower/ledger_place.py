"""Where a privacy mod finds the ledger of the node that it runs on.

Flower starts apps in folders that nobody chose: a node's in that of its SuperNode, a simulation's in that of whoever
started the local SuperLink first. So relative paths are looked for in one folder of the user's, `ledgers_folder()`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sordino.errors import LedgerUnavailable

FOLDER = "SORDINO_LEDGERS"  #: the environment variable that names another folder
FEDERATION = "flower "  #: how the federation begins that a mod's releases go to; Flower's number of the run follows
OWN = "ledger"  #: what an owner says of the ledger in `--node-config`
PARTITION = "partition-id"  #: how Flower numbers the nodes of a simulation, and templates those of a deployment


def ledgers_folder() -> Path:
    """The folder in which relative paths of ledgers are looked for: SORDINO_LEDGERS, or ~/.sordino/ledgers."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".sordino" / "ledgers").absolute()


def ledger_of(given: str | Path, node_config: Mapping[str, object], dataset: str) -> Path:
    """The ledger of this node: the owner's word in `ledger` of the node's configuration counts, then the app's.

    A file is the ledger itself. A folder holds one for each node: `0.db`, `1.db`, ..., by the node's `partition-id`.
    """
    path = ledgers_folder() / Path(str(node_config.get(OWN, given))).expanduser()
    if path.is_file() or (path / "ledger.sqlite").is_file():  # the second is a client's folder, which opening refuses
        return path
    if not path.is_dir():
        raise LedgerUnavailable(
            f"there is no ledger at {path}: looked in the folder {path.parent}. Make one for each of N nodes: sordino "
            f"ledger budget {path} {dataset} --epsilon E --nodes N (a single one: without --nodes), or say where this "
            f"node has its own: --node-config '{OWN}=\"PATH\"'"
        )
    return _of_node(path, node_config, dataset)


def _of_node(folder: Path, node_config: Mapping[str, object], dataset: str) -> Path:
    found = sorted(folder.glob("*.db"))
    number = node_config.get(PARTITION)
    if isinstance(number, int):
        path = folder / f"{number}.db"
        if path.is_file():
            return path
        raise LedgerUnavailable(
            f"the folder {folder} has no ledger for the node with {PARTITION} {number}: there is no {path}. Make it: "
            f"sordino ledger budget {folder} {dataset} --epsilon E --nodes {number + 1}"
        )
    if len(found) == 1:
        return found[0]
    raise LedgerUnavailable(
        f"the folder {folder} holds {len(found)} ledgers, and this node does not say which is its own: start it with "
        f"--node-config '{PARTITION}=0' or --node-config '{OWN}=\"PATH\"'"
    )


__all__ = ["FEDERATION", "FOLDER", "ledger_of", "ledgers_folder"]
