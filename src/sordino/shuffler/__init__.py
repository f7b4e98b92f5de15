"""The shuffler as a service: clients seal every parameter's report to the server, somebody in between mixes them.

    terms       what all parties of a round agree on
    keys        the server's key pair
    envelopes   the client's side (`seal`) and the server's (`open_batch`), on bytes alone
    store       what the shuffler holds, durably, until a batch leaves
    service     the shuffler itself, over HTTP
    remote      how clients and the server speak to it

Whoever reads docs/shuffler.md knows what it hides, and from whom.
"""

from sordino.shuffler.envelopes import OpenedBatch, seal, spread
from sordino.shuffler.parallel import open_batch
from sordino.shuffler.terms import Terms

__all__ = ["OpenedBatch", "Terms", "open_batch", "seal", "spread"]
