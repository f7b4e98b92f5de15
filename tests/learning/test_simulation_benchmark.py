"""The simulation benchmark does one job everywhere: the same networks, the same federation, honest tables."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import simulation
from benchmarks.rivals.job import PARAMETERS, Job, shape_for
from benchmarks.rivals.networks import flat, load, network, tensors
from benchmarks.rivals.plain_loop import one_after_the_other
from benchmarks.rivals.this_engine import OPTIONS
from benchmarks.simulation import ENGINE, FLOWER, LIMIT, LOOP, PFL, Figure, Plan, Run

from sordino.learning import models


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_rivals_networks_are_the_engines(name: str) -> None:
    """Equal parameter by parameter in shape, and equal in what they compute from equal values."""
    ours, theirs = models.build(name, input_shape=shape_for(name), classes=10, **OPTIONS.get(name, {})), network(name)
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    assert len(flat(theirs)) == PARAMETERS[name]
    load(theirs, flat(ours))
    x, _ = tensors(0, 5, shape_for(name))
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_the_plain_loop_trains_every_client_from_the_same_start() -> None:
    """A learning rate of zero gives back the start, as often as there are clients; another one leaves it as it is."""
    model = network("logistic")
    start, clients = flat(model), [tensors(k, 12) for k in range(3)]
    before = start.clone()
    assert torch.allclose(one_after_the_other(Job(model="logistic", lr=1e-12), model, start, clients), 3 * before)
    total = one_after_the_other(Job(model="logistic"), model, start, clients[:1])
    assert torch.equal(start, before)
    twice = one_after_the_other(Job(model="logistic", batch=12), model, start, [clients[0], clients[0]])
    once = one_after_the_other(Job(model="logistic", batch=12), model, start, clients[:1])
    assert torch.allclose(twice, 2 * once, atol=1e-5)
    assert not torch.allclose(total, before)


def test_clients_are_shared_out_whole_and_once() -> None:
    shares = Job(clients=10, processes=3).shares()
    assert [client for share in shares for client in share] == list(range(10))
    assert {len(share) for share in shares} <= {3, 4}


def test_a_candidate_is_run_as_a_program_of_its_own_and_timed_round_by_round() -> None:
    found = simulation.run(LOOP, Job(model="logistic", clients=3, records=2, processes=2, rounds=2))
    assert len(found.rounds) == 2
    assert 0 < sum(found.rounds) < found.seconds


def measured(plan: Plan, rates: dict[str, float], seconds: dict[str, float], memory: tuple[int, ...]) -> None:
    for section in plan.sections():
        for candidate in section.candidates:
            figure = section.figures[candidate.name] = Figure(candidate.name, section.job)
            if math.isnan(rates[candidate.name]):
                figure.why = "could not be installed"
                continue
            took = section.job.clients * section.job.records / rates[candidate.name]
            figure.add(Run(seconds.get(candidate.name, 1.0), (2 * took, took), 0))
    for section, size in zip(plan.scale, memory, strict=True):
        section.figures[ENGINE.name].memory = size


def test_goals_compare_best_rounds_and_whole_programs_and_say_what_is_missing() -> None:
    plan = Plan.of(processes=2, quick=True)
    rates = {ENGINE.name: 900.0, LOOP.name: 500.0, LIMIT.name: 1000.0, FLOWER.name: 10.0, PFL.name: math.nan}
    measured(plan, rates, {ENGINE.name: 2.0, FLOWER.name: 15.0}, (100, 200))
    goals = simulation.goals(plan)
    found = {goal.name.split(",")[0]: (goal.measured, goal.verdict) for goal in goals}
    assert found["engine / large-batch limit of all cores"] == (pytest.approx(0.9), "met")
    assert found["engine / plain loop"] == (pytest.approx(1.8), "met")
    assert found["engine / pfl"][1] == "not measured"
    assert found["Flower / engine"] == (pytest.approx(7.5), "missed")
    assert [(g.measured, g.verdict) for g in goals if "peak memory" in g.name] == [(pytest.approx(0.5), "missed")]
    rows = simulation.tables(plan)["speed"]
    assert next(row for row in rows if row[0] == PFL.name)[1] == "not measured: could not be installed"
    assert len({len(row) for row in rows}) == 1


def test_figures_are_recalled_as_they_were_written_and_missing_ones_are_named() -> None:
    plan = Plan.of(processes=2, quick=True)
    rates = {ENGINE.name: 900.0, LOOP.name: 500.0, LIMIT.name: 1000.0, FLOWER.name: 10.0, PFL.name: math.nan}
    measured(plan, rates, {}, (100, 200))
    kept = [figure.to_json() for section in plan.sections() for figure in section.figures.values()]
    again = Plan.of(processes=2, quick=True)
    for section in again.sections():
        section.recall(kept)
    assert [s.figures for s in again.sections()] == [s.figures for s in plan.sections()]
    with pytest.raises(SystemExit, match="not measured yet"):
        plan.scale[0].recall([])


def test_tables_replace_what_stands_between_their_marks_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n")
    for _ in range(2):
        simulation.insert(page, {"a": [["x", "y"], ["1", ""]]})
    assert page.read_text() == "before\n<!-- a -->\n| x | y |\n| --- | --- |\n| 1 |   |\n<!-- end of a -->\nafter\n"
    with pytest.raises(SystemExit, match="table 'b'"):
        simulation.insert(page, {"b": [["x"]]})


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="read from Linux's /proc")
def test_memory_is_that_of_a_program_with_its_children() -> None:
    """A child that fills 200 MiB and lives for some seconds."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"
    child = "import time; full = bytearray(b'1') * (200 * 2**20); time.sleep(5)"
    process = subprocess.Popen([sys.executable, "-c", code.format(child)])
    with simulation.Memory(process.pid, every=0.1) as memory:
        process.wait()
    assert 200 * 2**20 < memory.most < 260 * 2**20


def test_a_program_that_fails_is_not_measured_and_says_why() -> None:
    broken = replace(ENGINE, module="plain_loop")
    with pytest.raises(simulation.NotMeasured, match="unknown network nothing"):
        simulation.run(broken, Job(model="nothing", processes=1))
