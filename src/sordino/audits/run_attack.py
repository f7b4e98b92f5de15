"""`attack(folder)`: attacks on what a run's clients sent, beside the most that its proofs allow."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sordino.audits.attack_interface import RunAttack, find_attack
from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.errors import BoundViolated, InvalidInput
from sordino.parts.hardware import check_workers
from sordino.parts.registry import addresses
from sordino.privacy.leaks import Leak, attack_order
from sordino.randomness import simulation_key
from sordino.report.attack_file import AttackFile
from sordino.report.folder import alone
from sordino.report.leak_words import at_most, found_words, variant_words
from sordino.report.records import plain
from sordino.runs.execution import devices_for, one_thread


@dataclass(frozen=True, eq=False)
class Attacks:
    """What attacks found in a run. Each is a lower bound on what leaks, and no guarantee."""

    run: FinishedRun
    leaks: tuple[Leak, ...]
    left_out: tuple[str, ...]  #: attacks that do not fit the run, each as `name: why`
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Everything, ready for `json.dumps`."""
        return {
            "run": str(self.run.folder.path),
            "leaks": plain([leak.to_json() for leak in self.leaks]),
            "left_out": list(self.left_out),
            "seconds": self.seconds,
        }

    def write(self) -> None:
        """Put the leaks into `attacks.json` of the run's folder and into its page; other attacks keep their rows."""
        folder = self.run.folder
        with alone(folder.path):
            from sordino.report.page import report_page

            kept = _earlier(folder.path).without(AttackFile(self.leaks, self.left_out).tried)
            leaks = sorted((*kept.leaks, *self.leaks), key=lambda leak: attack_order(leak.attack))
            AttackFile(tuple(leaks), (*kept.left_out, *self.left_out)).write(folder.path)
            folder.write_report(report_page(folder))


def attack(
    path: Path | str,
    what: Iterable[str] | None = None,
    options: AttackOptions | None = None,
    *,
    data: object = None,
) -> Attacks:
    """Attack a finished simulation, in some ways or all; nothing is written (`Attacks.write` does that).

    `what` names attacks as a recipe does, one's own as `package.module:Class`; all that are known if left out.
    `data` is what `sordino.run` was handed. `BoundViolated` is raised where an attack finds more than a proof allows.
    """
    asked = AttackOptions() if options is None else options
    check_workers(asked.workers)
    asked = replace(asked, device=str(devices_for(asked.device)[0]))
    attacks = _named(addresses("attack") if what is None else what)
    simulation_key(asked.seed)  # refuses what is no seed
    began = time.monotonic()
    with one_thread():
        run = FinishedRun.open(path, data)
        if not run.simulated:
            raise InvalidInput(
                f"{run.folder.path} is a run of real clients: only their owners have the records that an attack is "
                "measured by. Attack a simulation of its recipe instead"
            )
        run.group_of(asked.client)  # an unknown client is refused before any work
        leaks, left_out = _carry_out(run, attacks, asked)
    if violations := [leak for leak in leaks if leak.is_violation]:
        raise BoundViolated(f"{_described(violations)}. The mechanism, the proof or the attack is wrong")
    return Attacks(run, leaks, left_out, time.monotonic() - began)


def _named(what: Iterable[str]) -> tuple[RunAttack, ...]:
    """The attacks of these names or addresses, each once."""
    found = {attack.name: attack for attack in map(find_attack, what)}
    return tuple(found[name] for name in sorted(found, key=attack_order))


def _carry_out(
    run: FinishedRun, attacks: Iterable[RunAttack], asked: AttackOptions
) -> tuple[tuple[Leak, ...], tuple[str, ...]]:
    """The attacks one after the other; what one refuses it does not fit."""
    leaks: list[Leak] = []
    left_out: list[str] = []
    for attack in attacks:
        try:
            found = attack.leaks(run, asked)
        except InvalidInput as error:
            left_out.append(f"{attack.name}: {error}")
            continue
        leaks += found
        if not found:
            left_out.append(f"{attack.name}: it needs {attack.needs}, and this run has none")
    return tuple(leaks), tuple(left_out)


def _described(violations: Iterable[Leak]) -> str:
    return "; ".join(
        f"PROVEN BOUND VIOLATED: {leak.attack} ({leak.how}, {variant_words(leak)}) was right in "
        f"{found_words(leak)} of the trials, and at most {at_most(leak.bound)} is proven possible (seed {leak.seed})"
        for leak in violations
    )


def _earlier(folder: Path) -> AttackFile:
    """What earlier attacks left; a damaged file is replaced."""
    try:
        return AttackFile.read(folder) or AttackFile()
    except InvalidInput:
        return AttackFile()
