"""LDPFL's randomised records back to pictures, and which of 1,000 records each was made of.

The attacker sees the randomised record itself, which the theorem is about (the server sees networks computed from it),
and its label, which travels in the clear. It randomises pictures of others in the same way, through the same extractor,
and learns by ridge regression what their pixels are. With a list of suspects it takes the likeliest instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sordino.audits import proven_twin
from sordino.audits.attack_options import AttackOptions
from sordino.audits.candidate_likelihood import HOW as LIKELIEST
from sordino.audits.finished_run import FinishedRun
from sordino.audits.linear_decoder import decode
from sordino.audits.reconstruction_game import SHOWN, RecordPool, Rows, leak_from_hits, leak_of, pool_beside
from sordino.errors import InvalidInput
from sordino.methods import extractors
from sordino.methods.chamikara_ldpfl import Ldpfl
from sordino.methods.interface import ClientState
from sordino.methods.randomised_records import LABELS, RECORDS
from sordino.privacy.leaks import Leak, Variant
from sordino.randomness import Keystream, another_seed
from sordino.runs.checkpoint import Belongings

HOW = "linear decoder of randomised records"
RECORDS_ATTACKED, MANY_RECORDS = 64, 512
PUBLIC, MANY_PUBLIC = 2_000, 10_000  #: pictures that the decoder is trained on
LARGEST_LABEL = 255
VARIANTS: tuple[Variant, ...] = ("bare", "run")


def attack(run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
    """Decode what a client made of its records before the first round: as they were drawn in this very run."""
    method = run.federation.method
    assert isinstance(method, Ldpfl)
    client = run.group_of(asked.client).clients[0] if asked.client is None else asked.client
    run.group_of(client)
    kept = Belongings(run.folder.checkpoint / "clients").get(client)
    if kept is None or RECORDS not in kept:
        raise InvalidInput(f"client {client} prepared no records in this run: name another --client")
    part = run.federation.parts[client][: len(kept[RECORDS])]
    rng = np.random.default_rng([asked.seed, 5])
    beside, equal = pool_beside(run, asked.seed, part)
    pool, public = beside.without_public(MANY_PUBLIC if asked.thorough else PUBLIC)
    if len(public) < 2:
        raise InvalidInput(
            f"client {client} holds all records but {len(pool) - len(part)}: none are left to learn from"
        )
    order = rng.permutation(len(part))[: MANY_RECORDS if asked.thorough else RECORDS_ATTACKED]
    targets = part[order]
    pictures = pool.pictures(public)
    found = []
    for variant in asked.track(VARIANTS, "Decoding"):
        began = time.perf_counter()
        seen, known = _seen(method, client, kept, pool, (public, order, targets), variant, asked.seed)
        decoded = decode(seen, pictures.flatten(1), known).reshape(len(targets), *pool.pixels.shape)
        figures = {"records": float(len(part)), "public": float(len(public)), "seconds": time.perf_counter() - began}
        each = list(decoded.clamp(0, 1).unsqueeze(1).float())
        found.append(leak_of(run, client, variant, HOW, pool, each, targets, figures, bounded=equal))
    named = _named(run, client, kept, pool, order, asked, bounded=equal)
    return (*found, *named, *proven_twin.attack(run, client, asked, targets[:SHOWN]))


def _named(
    run: FinishedRun,
    client: int,
    kept: ClientState,
    pool: RecordPool,
    order: Rows,
    asked: AttackOptions,
    *,
    bounded: bool,
) -> Iterator[Leak]:
    """Which randomised records fit their own record better than any of 999 others, the same for all."""
    began, method = time.perf_counter(), run.federation.method
    assert isinstance(method, Ldpfl)
    targets = run.federation.parts[client][order]
    others = pool.others(int(targets[0]))
    rows = np.concatenate([targets, others])
    records = pool.records(rows)
    features, labels = extractors.features_of(method.extractor, records.x, kept), records.y.numpy()
    own, count = {name: value[order] for name, value in kept.items() if name in (RECORDS, LABELS)}, len(targets)
    fits = method.records.fits(own, features, labels, client)
    hits = {"run": np.diagonal(fits) > fits[:, count:].max(axis=1)}
    doubles = [(features[count:] == features[k]).all(axis=1) & (labels[count:] == labels[k]) for k in range(count)]
    hits["bare"] = ~np.array(doubles).any(axis=1)
    figures = {"records": float(len(kept[RECORDS])), "seconds": time.perf_counter() - began}
    for variant in VARIANTS:
        yield leak_from_hits(run, client, variant, LIKELIEST, pool, hits[variant], None, targets, figures,
                             bounded=bounded, candidates=len(others) + 1)  # fmt: skip


def _seen(
    method: Ldpfl,
    client: int,
    kept: ClientState,
    pool: RecordPool,
    rows: tuple[Rows, Rows, Rows],
    variant: Variant,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """What stands for the public pictures `[N, v]` and for the attacked records `[K, v]`, beside their labels."""
    public, order, targets = rows
    both = [pool.records(own) for own in (public, targets)]
    features = [extractors.features_of(method.extractor, own.x, kept) for own in both]
    if variant == "bare":
        return _labelled(*((torch.from_numpy(values), own.y) for values, own in zip(features, both, strict=True)))
    drawn = method.records.randomise(
        features[0], both[0].y.numpy(), client, Keystream.simulation(another_seed(seed, 2**20), [client], 0)
    )
    own = {name: value[order] for name, value in kept.items() if name in (RECORDS, LABELS)}
    data = [method.records.data(one, torch.device("cpu")) for one in (drawn, own)]
    if data[0].x.dtype != torch.uint8:
        return data[0].x.float(), data[1].x.float()
    return _labelled(*((_bits(one.x)[:, : method.records.shape[0]], one.y) for one in data))


def _bits(packed: Tensor) -> Tensor:
    """`[n, 8 b]` numbers of bytes `[n, b]`."""
    return ((packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1).float()


def _labelled(public: tuple[Tensor, Tensor], attacked: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Values beside their labels, which travel in the clear: as large as all values of the public ones together."""
    spread = public[0].std(0, correction=0).square().sum().sqrt().clamp_min(1e-6)
    hot = [spread * functional.one_hot(labels, LARGEST_LABEL + 1) for _, labels in (public, attacked)]
    return torch.cat([public[0], hot[0]], dim=1), torch.cat([attacked[0], hot[1]], dim=1)


__all__ = ["attack"]
