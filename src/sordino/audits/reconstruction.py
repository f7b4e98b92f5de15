"""`reconstruct(run)`: what of clients' records can be made out again from what they sent.

Each attack draws 1,000 candidates for every attacked record, itself and 999 others of the data set. The record counts
as identified if it is the nearest of them to what the attack made of the reports. What is found is a lower bound: a
better attacker may find more.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sordino.audits import bit_decoder, candidate_likelihood, likeliest_update, proven_twin
from sordino.audits.attack_interface import RunAttack
from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.gradient_matching import SearchEffort
from sordino.audits.reconstruction_game import SHOWN, RecordPool, leak_of, pool_beside
from sordino.audits.server_view import Reporters, carries_parameters, is_mixed, rounds_of
from sordino.audits.update_attack import FEATURES, REFINED, UpdateAttack
from sordino.errors import InvalidInput
from sordino.learning.cohort import ClientData
from sordino.methods.interface import PARAMETERS
from sordino.privacy.leaks import Leak, Variant
from sordino.report.words import count
from sordino.runs.execution import one_thread

RECORDS, MANY_RECORDS = 32, 256  #: records that are attacked, quickly and thoroughly
ROUNDS = 10  #: rounds whose reports are averaged in a quick attack
CLIENTS = 4  #: clients that are attacked with all their records
PUBLIC, MANY_PUBLIC = 1_000, 5_000  #: pictures that a decoder is trained on
PICTURES = 8  #: pictures that are searched for each of them
WORK = 4e9  #: values of gradients that a quick attack on whole clients computes, about
LONGEST = 10  #: local steps that are simulated in a search, at most
QUICK = SearchEffort(steps=100, starts=1)
THOROUGH = SearchEffort(steps=800, starts=4)
VARIANTS: tuple[Variant, ...] = ("bare", "run")


def reconstruct(run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
    """Attack the reports of a simulated run, with its mechanism and without; a method that nothing fits is refused."""
    if not run.simulated:
        raise InvalidInput(
            f"the run in {run.folder.path} had real clients: their records are not here, and attacks on their reports "
            "are theirs alone to make. Simulate the same recipe with 'sordino run' and attack that"
        )
    with one_thread():
        match run.federation.method.report_content:
            case "nothing":
                raise InvalidInput("no report left any client of this run, so there is nothing to reconstruct from")
            case "sums over records":
                return candidate_likelihood.attack(run, asked)
            case "randomised records":
                return bit_decoder.attack(run, asked)
        if not carries_parameters(run):
            raise InvalidInput("reports of this method are no parameters of the model: no reconstruction is known")
        return tuple(_from_updates(run, asked))


class Reconstruction(RunAttack):
    """Rebuild records from reports, and look for them among others."""

    name = "reconstruction"
    needs = "reports that are made of records"

    def carry_out(self, run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
        """See `reconstruct`."""
        return reconstruct(run, asked)

    def deed(self, leak: Leak) -> str:
        """What is identified, and among how many."""
        candidates = leak.figures.get("candidates")
        among = f", each among {count(candidates)} candidates," if candidates else ""
        return f"records{among} the attack identifies"


def _from_updates(run: FinishedRun, asked: AttackOptions) -> Iterator[Leak]:
    """Clients that hold one record each, then clients as they are."""
    run.require_smooth_records("Attack the run with real records: sordino attack RUN --what membership")
    client = run.group_of(asked.client).clients[0] if asked.client is None else asked.client
    run.group_of(client)
    run.releases(client)  # refuses clients that took no part
    games = [_one_record, _whole_clients]
    for game in asked.track(games, "Reconstructing"):
        yield from game(run, client, asked)


def _attack(run: FinishedRun, asked: AttackOptions, all_records: RecordPool) -> tuple[UpdateAttack, RecordPool]:
    """What the attacker knows of the run, and the records that are candidates."""
    method = run.federation.method
    start = method.plan(method.init(), run.recipe.name).arrays[PARAMETERS]
    training = method.training
    steps = min(LONGEST, max(1, training.total_steps(1)))
    rate = float(getattr(training.optimizer, "lr", 0.01))
    model = copy.deepcopy(method.model).to(asked.device)
    attack = UpdateAttack(
        model, torch.from_numpy(np.array(start, np.float32)).to(asked.device), all_records.pixels.to(asked.device),
        (rate,) * steps, THOROUGH if asked.thorough else QUICK, asked.seed, watch=asked.watch,
    )  # fmt: skip
    if attack.how not in (FEATURES, REFINED):
        return attack, all_records
    pool, public = all_records.without_public(MANY_PUBLIC if asked.thorough else PUBLIC)
    return replace(attack, public=pool.pictures(public).to(asked.device)), pool


def _one_record(run: FinishedRun, client: int, asked: AttackOptions) -> Iterator[Leak]:
    """Clients with one record each: what a single record adds to a report is seen best there."""
    drawn = RecordPool(run.federation.dataset, asked.seed)
    targets = drawn.draw(min(MANY_RECORDS if asked.thorough else RECORDS, len(drawn) // 2))
    records = drawn.records(targets)
    data = [ClientData(records.x[k : k + 1], records.y[k : k + 1]) for k in range(len(targets))]
    attack, pool = _attack(run, asked, replace(drawn, known=targets))
    rounds = rounds_of(run, client, run.rounds if asked.thorough else ROUNDS)
    for variant in VARIANTS:
        began = time.perf_counter()
        updates = Reporters(run, variant, asked.device).updates(client, data, rounds, asked.seed)
        mixed = is_mixed(run) and variant == "run"
        if mixed:
            found = [_of_sum(attack, updates, len(targets))] * len(targets)
        else:
            found = list(attack.of_one(updates.to(asked.device)).unsqueeze(1).cpu())
        figures = {
            "records": 1.0, "clients": float(len(data) if mixed else 1), "rounds": float(len(rounds)),
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        together = len(data) if mixed else 1
        yield leak_of(run, client, variant, f"{attack.how}, clients of one record", pool, found, targets, figures,
                      seen=together, together=together)  # fmt: skip
    yield from likeliest_update.attack(run, client, asked)
    yield from proven_twin.attack(run, client, asked, targets[:SHOWN])


def _whole_clients(run: FinishedRun, client: int, asked: AttackOptions) -> Iterator[Leak]:
    """Clients with all their records."""
    parts = run.federation.parts
    others = [other for other in run.group_of(client).clients if other != client and len(parts[other]) > 1]
    members = [client, *(others[: CLIENTS - 1] if asked.client is None else [])]
    members = [member for member in members if len(parts[member]) > 1]
    if not members:
        return
    count = MANY_RECORDS if asked.thorough else RECORDS
    each = max(1, count // len(members))
    pool, equal = pool_beside(run, asked.seed, np.concatenate([parts[member] for member in members]))
    if pool.candidates < 2:
        return
    draws = [np.random.default_rng([asked.seed, 3, member]).permutation(parts[member])[:each] for member in members]
    targets, owners = np.concatenate(draws), np.repeat(np.arange(len(members)), [len(own) for own in draws])
    data = [pool.records(parts[member]) for member in members]
    attack, pool = _attack(run, asked, pool)
    attack = replace(attack, rates=(*attack.rates, *attack.rates))  # more than one step
    work = sum(len(own) for own in data) * (run.federation.method.training.total_steps(100) / 10) * attack.layout.size
    most = run.rounds if asked.thorough else min(ROUNDS, max(1, int(WORK // work)))
    rounds = rounds_of(run, client, most)
    for variant in VARIANTS:
        began = time.perf_counter()
        updates = Reporters(run, variant, asked.device).updates(client, data, rounds, asked.seed)
        mixed = is_mixed(run) and variant == "run"
        if mixed:
            pictures = [_of_sum(attack, updates, PICTURES * len(members))] * len(members)
        else:
            pictures = list(attack.of_many(updates.to(asked.device), _most(attack)).cpu())
        found = [pictures[owner] for owner in owners]
        figures = {
            "records": sum(len(own) for own in data) / len(data), "clients": float(len(members) if mixed else 1),
            "rounds": float(len(rounds)), "seconds": time.perf_counter() - began,
        }  # fmt: skip
        how = f"{attack.how.partition(',')[0]}, whole clients"
        yield leak_of(run, client, variant, how, pool, found, targets, figures,
                      seen=len(members) if mixed else 1, bounded=equal,
                      together=len(targets) if mixed else each)  # fmt: skip


def _most(attack: UpdateAttack) -> int:
    """Pictures for each client: all rows where they cost nothing."""
    free = attack.dense is not None and attack.dense.takes_records
    return 2**16 if free else PICTURES


def _of_sum(attack: UpdateAttack, updates: Tensor, most: int) -> Tensor:
    """Pictures `[P, ...]` of the records behind what all updates add up to."""
    free = attack.dense is not None and attack.dense.takes_records
    total = updates.mean(0, keepdim=True).to(attack.start.device)
    return attack.of_many(total, 2**16 if free else most)[0].cpu()


__all__ = ["Reconstruction", "reconstruct"]
