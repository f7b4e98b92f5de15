"""Audits of whole runs, one of each method: what they attack, what they show, and where the evidence goes."""

import json
import math
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.audits import silos, trusted_server
from sordino.audits.findings import AuditOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.inspection import inspect_one, level
from sordino.audits.lower_bound import CONSISTENT, REFUTED, VIOLATED
from sordino.audits.run_audit import FILE, Audit, audit
from sordino.errors import InvalidInput
from sordino.learning import draws, linear_head, private_sgd
from sordino.mechanisms import Gaussian, TwoPoint
from sordino.mechanisms.output import BitOutput
from sordino.methods import central_dp
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Pure, Release
from sordino.privacy.statement import AuditBound
from sordino.recipe import Recipe
from sordino.report.statement import to_text
from sordino.runs.federation import Federation
from sordino.runs.simulation import run
from tests.audits.runs import RECIPES, small
from tests.privacy.statements import statement_of

QUICK = AuditOptions(trials=2000, canaries=200)
#: Where every trial is a round of training. What these audits catch is tested below, by name.
SILOS = ("silo-dp", "silo-dp, adam", "hybrid-one", "private-head", "private-head, alone", "private-head, clients")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a finished run by its recipe's name; each is run once."""
    base = tmp_path_factory.mktemp("runs")

    @cache
    def folder(name: str) -> Path:
        path = base / str(len(list(base.iterdir())))
        run(small(name), folder=path, workers=1)
        return path

    return folder


@pytest.fixture(scope="module")
def audits(folders):
    """Its audit, each made once."""
    return cache(lambda name: audit(folders(name), replace(QUICK, trials=500) if name in SILOS else QUICK))


def seen(found: Audit) -> list[tuple[str, str, str]]:
    return [(row.unit.partition(" of round")[0].partition(",")[0], row.adjacency, row.adversary) for row in found.rows]


# --- every method -----------------------------------------------------------------------------------------------------

CLIENT, VALUE = ("upload", "client", "server"), ("one value", "coordinate", "server")
RUN, READER, ROUND = (
    ("the whole run", "record (add/remove)", "server"),
    ("the whole run", "record (add/remove)", "model reader"),
    ("upload of one round", "record (add/remove)", "server"),
)
EXPECTED: dict[str, list[tuple[str, str, str]]] = {
    "none": [CLIENT, VALUE, CLIENT],
    "two-point": [CLIENT, VALUE, CLIENT],
    "gaussian": [CLIENT, CLIENT],  # in a ball one value is no unit of its own
    "samples": [CLIENT, VALUE, CLIENT],
    "summed": [CLIENT, VALUE, ("upload", "client", "summed(2)"), ("one value", "coordinate", "summed(2)"), CLIENT],
    "ldp-fl": [CLIENT, VALUE, ("upload", "client", "shuffled(4)"), ("one value", "coordinate", "shuffled(4)"), CLIENT],
    "ldp-fl, models": [CLIENT, VALUE, ("upload", "client", "shuffled(4)"), CLIENT],
    "ldp-fed": [CLIENT, VALUE, CLIENT],
    "personalized": [CLIENT, VALUE, CLIENT],
    "webfed": [CLIENT, VALUE, CLIENT],
    "ldpfl": [("one randomised record", "record (replace)", "server")],
    "ldpfl, right": [("one randomised record", "record (replace)", "server")],
    "central-dp": [("model after round 1", "client", "model reader")],
    "central-dp, median": [],
    "silo-dp": [RUN, READER, ROUND],
    "silo-dp, adam": [RUN, READER, ROUND],
    "hybrid-one": [RUN, ("the whole run", "record (add/remove)", "summed(4)"), READER, ROUND],
    "private-head": [
        RUN, ("the whole run", "record (add/remove)", "summed(4)"), READER, ROUND,
        ("one sum", "record (add/remove)", "summed(4)"),
    ],
    "private-head, alone": [RUN, READER, ROUND],
    "private-head, clients": [("upload of one round", "client", "server"), ("one sum", "client", "summed(4)")],
    "local-only": [],
}  # fmt: skip


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_method_is_audited_for_whom_it_protects_from(audits, name):
    found = audits(name)
    assert sorted(seen(found)) == sorted(EXPECTED[name])
    for row in found.rows:
        assert row.verdict != VIOLATED, row
        assert row.audited <= min(row.cap, row.proven) + 1e-9
        assert row.attack
        assert row.confidence == 0.95


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected])
def test_the_evidence_stands_in_the_statement(audits, name):
    found = audits(name)
    stated = [row for row in found.statement.rows if row.audited is not None]
    assert stated
    for row in stated:
        assert row.audited.epsilon <= row.proven
        assert "seed 1" in row.audited.attack


def rows_of(found: Audit, adjacency: str, adversary: str = "server") -> list[Any]:
    return [row for row in found.rows if (row.adjacency, row.adversary) == (adjacency, adversary)]


def test_what_is_not_protected_is_told_with_certainty(audits):
    whole, own = rows_of(audits("none"), "client")
    assert whole.audited == whole.cap == own.audited
    assert math.isinf(whole.proven)
    assert whole.to_json()["proven"] == "infinite"


def test_whoever_lost_most_is_audited_unless_somebody_is_named(folders, audits):
    assert audits("two-point").found.group.clients == (3,)
    assert rows_of(audits("two-point"), "coordinate")[0].proven == pytest.approx(3.0, abs=1e-4)
    named = audit(folders("two-point"), replace(QUICK, client=1))
    assert named.found.group.clients == (0, 1)
    assert rows_of(named, "coordinate")[0].proven == pytest.approx(1.0, abs=1e-4)
    assert all(row.attack.startswith("client 1, round 1") for row in named.rows)


def test_a_whole_upload_can_only_be_shown_to_be_at_the_cap(audits):
    whole, _ = rows_of(audits("two-point"), "client")
    assert whole.audited == whole.cap < 6 < 1000 < whole.proven


def test_a_sample_count_in_the_clear_is_named_as_not_audited(audits):
    (left,) = audits("samples").found.left_out
    assert left.startswith("sample count: the number of samples is sent as it is")


def test_the_shuffled_claim_is_refuted(audits):
    mixed = next(row for row in audits("ldp-fl").rows if row.adversary == "shuffled(4)" and row.adjacency == "client")
    assert mixed.claimed == 0.5
    assert mixed.verdict == REFUTED
    models = next(row for row in audits("ldp-fl, models").rows if row.adversary == "shuffled(4)")
    assert models.claimed == 325.0
    assert models.verdict == CONSISTENT


def test_ldp_feds_client_is_audited_in_its_own_first_round(folders):
    """Two of four are asked in a round, and every round has its own layer."""
    found = FinishedRun.open(folders("ldp-fed"))
    heard = {client for spent in found.spent for who in spent.clients for client in who}
    first = {client: found.releases(client)[0] for client in heard}
    late = max(first, key=lambda client: first[client])
    assert first[late] > 1
    rows = audit(folders("ldp-fed"), replace(QUICK, client=late)).rows
    assert rows[0].unit.startswith(f"upload of round {first[late]},")


def test_the_claim_of_eq_4_is_refuted_at_its_own_delta(folders, audits):
    whole = rows_of(audits("personalized"), "client")[0]
    assert whole.claimed_delta == whole.delta == 0.002
    assert 0.99 * whole.cap < whole.audited < whole.claimed == 10.0  # the cap of so few trials is below the claim
    weakest = audit(folders("personalized"), replace(QUICK, client=0))
    assert (rows_of(weakest, "client")[0].claimed, rows_of(weakest, "client")[0].verdict) == (1.0, REFUTED)


def test_webfeds_reading_is_refuted_and_its_count_named(audits):
    found = audits("webfed")
    assert (rows_of(found, "client")[0].claimed, rows_of(found, "client")[0].verdict) == (3.0, REFUTED)
    assert any(left.startswith("noisy sample count") for left in found.found.left_out)


def test_theorem_2_is_refuted_on_a_randomised_record(audits):
    (row,) = audits("ldpfl").rows
    assert (row.claimed, row.verdict) == (0.5, REFUTED)
    assert row.audited > 0.99 * row.cap
    assert audits("ldpfl").found.left_out[0].startswith("labels")


def test_ldpfl_done_right_stays_below_what_is_claimed(audits):
    (row,) = audits("ldpfl, right").rows
    assert row.proven == math.inf
    assert row.claimed == pytest.approx(2.0, rel=1e-4)
    assert 1.2 < row.audited < 2.0


def test_a_trusted_servers_model_is_audited_and_the_server_is_not(audits):
    (row,) = audits("central-dp").rows
    assert 0.3 < row.audited < row.proven
    assert any("client against server" in left for left in audits("central-dp").found.left_out)
    assert any("median" in left for left in audits("central-dp, median").found.left_out)


def test_canaries_show_something_and_the_final_model_less(audits):
    uploads, model, _ = audits("silo-dp").rows
    assert 0.5 < uploads.audited < uploads.proven
    assert model.audited <= uploads.audited
    assert uploads.trials == 200


def test_a_broken_secure_sum_tells_more_than_the_sum(audits):
    alone, together = (rows_of(audits("hybrid-one"), "record (add/remove)", who)[0] for who in ("server", "summed(4)"))
    assert alone.proven > together.proven
    assert alone.audited > together.audited


def test_where_nothing_was_released_there_is_nothing_to_audit(audits):
    assert audits("local-only").found.left_out == ("nothing: no report left any client",)


# --- mistakes are caught ----------------------------------------------------------------------------------------------


def weaken(monkeypatch: pytest.MonkeyPatch, weaker: Any) -> None:
    """From now on clients send through weaker mechanisms than the run vouched for."""
    honest = FinishedRun.open

    def opened(path: Path, data: object = None) -> FinishedRun:
        run = honest(path, data)
        upload = run.federation.upload
        upload.__dict__["mechanisms"] = tuple(map(weaker, upload.mechanisms))
        return run

    monkeypatch.setattr(FinishedRun, "open", opened)


def test_bits_with_half_of_the_protection_are_caught(folders, monkeypatch):
    weaken(monkeypatch, lambda honest: TwoPoint(2 * honest.epsilon, honest.domain))
    found = audit(folders("two-point"), replace(QUICK, trials=20_000))
    assert found.violated
    assert rows_of(found, "coordinate")[0].verdict == VIOLATED
    assert all(row.audited is None for row in found.statement.rows if row.adjacency == "coordinate")


def test_half_of_gaussian_noise_is_caught(folders, audits, monkeypatch):
    assert not audits("gaussian").violated
    weaken(monkeypatch, lambda honest: Gaussian(honest.sigma / 2, honest.domain))
    assert rows_of(audit(folders("gaussian"), QUICK), "client")[0].verdict == VIOLATED


def halve_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-SGD that adds half of the noise that it vouches for."""
    honest = private_sgd.integer_noise
    monkeypatch.setattr(private_sgd, "integer_noise", lambda *arguments: honest(*arguments) // 2)


def test_half_of_the_noise_of_dp_sgd_is_caught_by_canaries_in_one_run_and_by_many_rounds(folders, monkeypatch):
    """Proven is mu = 0.75: an epsilon of 3.15 at delta 1e-5. Half of the noise is mu = 1.5."""
    asked = AuditOptions(trials=1000, canaries=16_000)
    honest = audit(folders("one step"), asked)
    assert [row.verdict for row in honest.rows] == [CONSISTENT] * 3
    assert honest.rows[0].proven == pytest.approx(3.15, abs=0.01)
    assert honest.rows[0].audited > 1.0
    halve_noise(monkeypatch)
    broken = audit(folders("one step"), asked)
    uploads, _, rounds = broken.rows
    assert (uploads.verdict, rounds.verdict) == (VIOLATED, VIOLATED)
    assert uploads.audited > 1.5 * honest.rows[0].audited
    assert broken.violated


def broken_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One function of DP-SGD does something else than it vouches for."""
    noise, sample = private_sgd.integer_noise, draws.poisson_samples

    def every_hundredth_bare(*arguments: Any) -> Any:
        found = noise(*arguments)
        found[:, ::100] = 0
        return found

    broken: dict[str, tuple[Any, str, Any]] = {
        "noise x 0.9": (private_sgd, "integer_noise", lambda *given: (noise(*given) * 0.9).astype(np.int64)),
        "1 % of coordinates bare": (private_sgd, "integer_noise", every_hundredth_bare),
        "one noise for all steps": (
            private_sgd, "integer_noise", lambda own, rows, stream, step, d: noise(own, rows, stream, 0, d)
        ),
        "sampling rate x 1.5": (
            draws, "poisson_samples", lambda own, row, step, n, rate: sample(own, row, step, n, 1.5 * rate)
        ),
        "sampling rate x 1.02": (
            draws, "poisson_samples", lambda own, row, step, n, rate: sample(own, row, step, n, 1.02 * rate)
        ),
        "one sample for all steps": (
            draws, "poisson_samples", lambda own, row, step, n, rate: sample(own, row, 0, n, rate)
        ),
    }  # fmt: skip
    monkeypatch.setattr(*broken[name])


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("noise x 0.9", "noise of all"),
        ("1 % of coordinates bare", "noise by coordinate"),
        ("one noise for all steps", "lags of rows"),
        ("sampling rate x 1.5", "frequencies of all"),
        ("sampling rate x 1.02", "sampling threshold"),
        ("one sample for all steps", "lags of rows"),
    ],
)
def test_faults_of_a_runs_dp_sgd_are_caught_by_the_checks_of_its_own_training(folders, monkeypatch, name, check):
    finished = FinishedRun.open(folders("silo-dp"))
    subjects = silos._subjects(finished, finished.releases(0)[1])
    broken_training(name, monkeypatch)
    assert any(one.check == check for each in subjects for one in inspect_one(each, 1, level(0)).failed)


def test_coins_of_a_trusted_servers_clients_are_held_against_their_exact_threshold(folders, monkeypatch):
    finished = FinishedRun.open(folders("central-dp"))
    coins = trusted_server._subjects(finished, finished.releases(0)[1])[1]
    assert all(check().p == 1 for check in coins.enumerated)
    monkeypatch.setattr(central_dp, "threshold", lambda rate: int(1.02 * rate * 2**32))
    assert [check().p for check in coins.enumerated] == [0.0]


class Leaky(TwoPoint):
    """Every hundredth value is sent without noise."""

    def randomize(self, values: Any, randomness: Any, *, tensor: int = 0) -> Any:
        drawn = super().randomize(values, randomness, tensor=tensor)
        bits = drawn.output.bits()
        bits[:, ::100] = np.asarray(values)[:, ::100] > 0
        return drawn._replace(output=BitOutput.pack(bits.astype(np.bool_)))


def test_one_value_in_a_hundred_without_noise_is_a_violation_of_every_row(folders, monkeypatch):
    weaken(monkeypatch, lambda honest: Leaky(honest.epsilon, honest.domain))
    found = audit(folders("two-point"), QUICK)
    assert found.violated
    assert {row.verdict for row in found.rows} == {VIOLATED}
    assert "frequencies by coordinate" in rows_of(found, "coordinate")[0].note
    assert not found.to_json()["checks"][0]["passed"]


def test_gradients_that_are_not_clipped_are_caught(folders, monkeypatch):
    honest = linear_head.LinearHead.sums

    def unclipped(*arguments: Any) -> Any:
        found = honest(*arguments)
        return replace(found, sums=10 * found.sums)

    monkeypatch.setattr(linear_head.LinearHead, "sums", unclipped)
    assert audit(folders("one step"), AuditOptions(trials=1000, canaries=400)).violated


# --- the folder -------------------------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_audit_writes_its_evidence_and_touches_nothing_else(folders, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(folders("two-point"), folder)
    before = files(folder)
    found = audit(folder, QUICK)
    assert files(folder) == before
    found.write()
    after = files(folder)
    changed = {name for name in after if before.get(name) != after[name]}
    assert changed == {"statement.json", "statement.txt", "report.html", FILE}
    assert "<td>audited, delta" in (folder / "report.html").read_text()
    assert ">= " in (folder / "statement.txt").read_text()
    packed = json.loads((folder / FILE).read_text())
    assert [row["seed"] for row in packed["rows"]] == [1] * 3
    old, new = (json.loads(files_["statement.json"]) for files_ in (before, after))
    for row, audited in zip(old["rows"], new["rows"], strict=True):
        assert {**row, "audited": None, "verdict": None} == {**audited, "audited": None, "verdict": None}


def test_the_evidence_of_an_earlier_audit_of_others_is_kept(folders, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(folders("two-point"), folder)
    for client in (0, 2):
        audit(folder, replace(QUICK, client=client)).write()
    stated = json.loads((folder / "statement.json").read_text())["rows"]
    audited = {row["clients"][0] for row in stated if row["audited"] is not None}
    assert audited == {"clients 0-1", "client 2"}


def test_evidence_about_one_of_many_clients_is_shown_as_that_clients():
    """Beyond a handful of groups a statement shows spans: a bound that holds for one must not look like one for all."""
    guarantee = [Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0 + k), "proof") for k in range(6)]
    releases = {f"client {k}": [Release("r", "data", "report", (own,))] for k, own in enumerate(guarantee)}
    stated = statement_of(releases, delta=0.0)
    last = stated.rows[-1]
    evidence = replace(last, audited=AuditBound(5.5, 0.95, 1000, "an attack"))
    text = to_text(replace(stated, rows=(*stated.rows[:-1], evidence)))
    assert f">= 5.5 ({last.clients[0]})" in text


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(folders):
    few = replace(QUICK, trials=300, canaries=30)
    first, again, other = (audit(folders("hybrid-one"), replace(few, seed=seed)).rows for seed in (1, 1, 2))
    assert again == first
    assert other[0].audited != again[0].audited


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_or_no_run_is_refused(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidInput, match="sordino run"):
            audit(path, QUICK)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "report.html").unlink(), "not over: finish it with 'sordino run --resume"),
        (lambda f: (f / "environment.json").write_text('{"sordino": "0.0.1"}'), "made by Sordino 0.0.1"),
        (lambda f: (f / "recipe.toml").write_text(small("gaussian").to_toml()), "changed after"),
        (lambda f: (f / "recipe.toml").write_text("name = 3"), "cannot be read"),
        (lambda f: shutil.rmtree(f / "checkpoint"), "Run it anew: sordino run"),
        (lambda f: (f / "checkpoint/releases.jsonl").write_text("{}\n"), "damaged"),
    ],
    ids=["unfinished", "version", "edited", "unreadable", "no-history", "damaged"],
)
def test_a_run_that_cannot_be_audited_is_refused_with_the_remedy(folders, tmp_path, spoil, words):
    folder = tmp_path / "run"
    shutil.copytree(folders("two-point"), folder)
    spoil(folder)
    with pytest.raises(InvalidInput, match=words):
        audit(folder, QUICK)


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("two-point", {"client": 4}, "0 to 3"),
        ("two-point", {"client": -1}, "0 to 3"),
        ("two-point", {"round": 9}, "nothing in round 9"),
        ("two-point", {"trials": 5}, "100"),
        ("silo-dp", {"canaries": 5}, "20"),
        ("ldp-fed", {"round": 99, "client": 0}, "name another --client or --round"),
    ],
)
def test_absurd_requests_are_refused(folders, name, asked, words):
    with pytest.raises(InvalidInput, match=words):
        audit(folders(name), replace(QUICK, **asked))


def test_a_run_is_audited_with_a_federation_of_its_own(folders):
    first, second = (FinishedRun.open(folders("two-point")).federation for _ in range(2))
    assert isinstance(first, Federation)
    assert first.method is not second.method


def test_the_audit_of_a_run_on_files_that_have_changed_is_refused(tmp_path: Path) -> None:
    x, y = np.linspace(0, 1, 80, dtype=np.float32).reshape(40, 2), np.arange(40) % 2
    own = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(tmp_path / "own.npz", **own)
    silo = {"name": "silo-dp", "noise_multiplier": 2.0, "sampling_rate": 0.5, "steps": 1, "announced_size": 20}
    data = {"source": str(tmp_path / "own.npz"), "classes": ["a", "b"], "mean": [0.0], "std": [1.0]}
    recipe = Recipe.from_dict(
        {"name": "own", "data": data, "split": {"kind": "iid", "clients": 2}, "method": silo,
         "model": {"name": "logistic"}, "rounds": {"count": 1}}
    )  # fmt: skip
    run(recipe, folder=tmp_path / "run", workers=1)
    assert FinishedRun.open(tmp_path / "run").rounds == 1
    x[0] = 9
    np.savez(tmp_path / "own.npz", **own)
    with pytest.raises(InvalidInput, match="other data"):
        FinishedRun.open(tmp_path / "run")
