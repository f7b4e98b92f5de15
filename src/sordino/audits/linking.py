"""Whose report is whose, where names are taken off: links between the reports of two rounds, by value and by time.

A client trains on the same records in every round, so its updates are alike. The attacker takes off what the reports of
a round have in common, compares each with each of the next round, and pairs them so that they agree most. Where
whole reports are shuffled this is what the server can do; of direct reports, whose senders are known, it says what
taking their names off would hide. Where every parameter is mixed by itself, or a secure sum hides all reports, there
is no report to link.

LDP-FL's Algorithm 3 has no shuffler: clients send each parameter after a random delay, and whoever sees the messages
sees when they arrive. The attacker knows how long each client takes, and names for each message a client that can
have sent it then. "run": everybody waits for the slowest first, as the algorithm says. "bare": nobody waits.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from sordino.audits.attack_interface import RunAttack
from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.server_view import HeardRound, Reporters, check_simulated, hear, reports_models
from sordino.channels.shuffle import Delays
from sordino.privacy.leaks import Leak, Share, Variant

Floats = NDArray[np.float64]

ROUNDS, THOROUGH_ROUNDS = 6, 40  #: that are linked
MOST_CLIENTS = 200
MESSAGES = 20_000  #: that are attributed by their time


def link(run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
    """Link reports of one round to those of the next; nothing where there are no whole reports and no delays.

    The share is that of pairs that are linked right, or of messages that are attributed to their senders.
    """
    check_simulated(run)
    return (*_by_value(run, asked), *_by_time(run, asked))


class Linking(RunAttack):
    """Recognise a client by its reports."""

    name = "linking"
    needs = "reports of the same clients that differ in value or time"

    def carry_out(self, run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
        """See `link`."""
        return link(run, asked)

    def deed(self, leak: Leak) -> str:
        """Senders are named, of reports or of messages."""
        return f"{'messages' if leak.how == 'timing' else 'reports'}, the attack names the sender of"


def _by_value(run: FinishedRun, asked: AttackOptions) -> list[Leak]:
    channel = run.recipe.method.channel
    whole = not channel.unseen or getattr(channel, "granularity", "") == "model"
    if not reports_models(run) or not whole or run.clients < 2:
        return []
    heard = hear(run, asked, THOROUGH_ROUNDS if asked.thorough else ROUNDS)
    found = (_linked(run, heard, variant, asked) for variant in Reporters.variants(run))
    return [leak for leak in found if leak is not None]


def _linked(run: FinishedRun, heard: list[HeardRound], variant: Variant, asked: AttackOptions) -> Leak | None:
    began = time.monotonic()
    reporters = Reporters(run, variant, asked.device)
    classes = [run.federation.method.class_of(client) for client in range(run.clients)]
    seen: list[dict[int, NDArray[np.float32]]] = []
    for one in asked.track(heard, "Linking reports"):
        clients = [client for client, body in sorted(one.bodies.items()) if body][:MOST_CLIENTS]
        if variant == "run":
            seen.append({client: reporters.heard(one, client) for client in clients})
            continue
        data = run.federation.population.data
        members = [(client, data(client, torch.device("cpu"))) for client in clients]
        seen.append(dict(zip(clients, reporters.answers(one.plan, members, run.recipe.seed).changes, strict=True)))
    hits = trials = 0
    guesses = 0.0
    for before, after in pairwise(seen):
        both = sorted(before.keys() & after.keys())
        for number in sorted({classes[client] for client in both}):  # reports of another strength look different
            crowd = [client for client in both if classes[client] == number]
            if len(crowd) < 2:
                continue
            hits += links(np.stack([before[c] for c in crowd]), np.stack([after[c] for c in crowd]), asked.seed)
            trials, guesses = trials + len(crowd), guesses + 1
    if not trials:
        return None
    figures = {"clients": len({c for one in seen for c in one}), "rounds": len(seen)}
    chance = guesses / trials  # in every crowd one pair is right by chance, on average
    return Leak(
        "linking", variant, "values", Share(hits, trials), chance,
        figures={**figures, "seconds": time.monotonic() - began}, seed=asked.seed,
    )  # fmt: skip


def links(before: NDArray[np.float32], after: NDArray[np.float32], seed: int) -> int:
    """How many of n reports `[n, d]` are linked to the same row of the next round's.

    The second round's rows are put into a random order first, so that their place says nothing.
    """
    order = np.random.default_rng([seed, len(after)]).permutation(len(after))
    likeness = _directions(before) @ _directions(after[order]).T
    _, partner = linear_sum_assignment(-likeness)
    return int(np.count_nonzero(order[partner] == np.arange(len(before))))


def _directions(reports: NDArray[np.float32]) -> Floats:
    """Rows without what all have in common, of length 1."""
    own = reports.astype(np.float64)
    own = np.nan_to_num(own - own.mean(axis=0))
    return np.asarray(own / np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-300))


# --- by time ----------------------------------------------------------------------------------------------------------


def _by_time(run: FinishedRun, asked: AttackOptions) -> list[Leak]:
    delay = getattr(run.recipe.method.channel, "delay", None)
    if delay is None or run.clients < 2:
        return []
    delays = Delays.of(delay, run.clients, run.recipe.seed)
    responses = np.broadcast_to(delays.responses, (run.clients,))
    waiting = np.full(run.clients, responses.max())
    starts: dict[Variant, Floats] = {"run": waiting, "bare": np.array(responses)}
    return [
        Leak(
            "linking", variant, "timing", attributed(own, delays.latency, asked.seed), 1 / run.clients,
            figures={"clients": run.clients, "latency": delays.latency}, seed=asked.seed,
        )
        for variant, own in starts.items()
    ]  # fmt: skip


def attributed(starts: Floats, latency: float, seed: int) -> Share:
    """Messages of clients that send evenly over [start, start + latency], attributed to one who can have sent them."""
    rng = np.random.default_rng([seed, len(starts)])
    senders = rng.integers(len(starts), size=MESSAGES)
    times = starts[senders] + latency * rng.random(MESSAGES)
    hits = 0
    for sender, arrival in zip(senders.tolist(), times.tolist(), strict=True):
        suspects = np.flatnonzero((starts <= arrival) & (arrival <= starts + latency))
        hits += int(rng.choice(suspects) == sender)
    return Share(hits, MESSAGES)


__all__ = ["Linking", "attributed", "link", "links"]
