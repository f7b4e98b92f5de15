"""What a statement says, to people and to programs, and what it refuses to say."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.privacy.statements import statement_of

from sordino.errors import InvalidInput, UnsupportedLoss
from sordino.privacy.guarantee import (
    MODEL_READER,
    SERVER,
    Adjacency,
    Claim,
    Derived,
    GaussianLoss,
    Guarantee,
    Infinite,
    Loss,
    PoissonGaussian,
    Pure,
    RandomizedBit,
    Release,
    shuffled,
    summed,
)
from sordino.privacy.statement import AuditBound, PlannedFor, Statement, View, leading
from sordino.report.privacy_section import privacy_section
from sordino.report.statement import sentences, to_json, to_text, trust, view_sentences
from sordino.report.words import figure

ONE = math.ceil(2**32 / (math.e + 1))  #: threshold of a bit of epsilon 1
CLIENT, COORDINATE = Adjacency.CLIENT, Adjacency.COORDINATE


def release(loss: Loss, name: str = "r", claim: float | None = None) -> Release:
    claimed = None if claim is None else Claim(claim, 0.0, "eps")
    return Release(name, "data", "report", (Guarantee(SERVER, CLIENT, loss, "a theorem"),), claimed)


def uploads(rounds: int = 10, values: int = 21_840, about: Adjacency = CLIENT) -> list[Release]:
    """The uploads of 002: one bit per value, claimed to be epsilon 1 for the client or for each weight."""
    return [
        Release(
            f"round {number}",
            "data",
            "weights",
            (
                Guarantee(SERVER, COORDINATE, RandomizedBit(ONE, 1), "Eq. 2"),
                Guarantee(SERVER, CLIENT, RandomizedBit(ONE, values), "sum over values"),
                Guarantee(shuffled(100), CLIENT, RandomizedBit(ONE, values), "counts of 100 clients"),
            ),
            Claim(1.0, 0.0, "eps per weight", about),
        )
        for number in range(rounds)
    ]


def test_a_row_for_every_adversary_and_adjacency() -> None:
    client, coordinate, mixed = statement_of(uploads()).rows
    assert (coordinate.adversary, coordinate.adjacency) == (SERVER, COORDINATE)
    assert coordinate.pure == pytest.approx(1.0, abs=1e-6)
    assert 0.9999 < coordinate.proven < coordinate.pure
    assert client.pure == pytest.approx(218_400, rel=1e-6)
    assert client.proven == pytest.approx(102_690, rel=1e-4)
    assert client.verdict == "claim not supported"
    assert mixed.adversary == shuffled(100)
    assert mixed.reached == pytest.approx(1405, rel=3e-3)
    assert mixed.proven == pytest.approx(1992, rel=1e-3)


def test_one_value_of_one_upload_does_not_add_up_over_rounds() -> None:
    client, row, _ = statement_of(uploads(3, about=COORDINATE)).rows
    assert row.adjacency is COORDINATE
    assert row.claimed is not None
    assert row.claimed.epsilon == 1.0
    assert row.verdict == "claim proven"
    assert client.verdict == "no claim"


def test_audits_refute_claims() -> None:
    claimed_half = [release(Pure(3.0), claim=0.5)]
    refuted = statement_of(claimed_half, audits={(SERVER, CLIENT): AuditBound(2.3, 0.95, 1000, "likelihood ratio")})
    assert refuted.rows[0].verdict == "claim refuted by experiment"
    assert "claim refuted by experiment" in to_text(refuted)
    weak = statement_of(claimed_half, audits={(SERVER, CLIENT): AuditBound(0.4, 0.95, 1000, "likelihood ratio")})
    assert weak.rows[0].verdict == "claim not supported"


def test_an_audit_at_a_smaller_delta_than_the_claim_refutes_nothing() -> None:
    claim = Claim(1.0, 1e-3, "eps")
    one = Release("r", "data", "x", (Guarantee(SERVER, CLIENT, GaussianLoss(1.0), "curve"),), claim)
    stated = statement_of([one], audits={(SERVER, CLIENT): AuditBound(1.2, 0.95, 10, "attack", delta=1e-9)})
    assert stated.rows[0].verdict == "claim not supported"


def test_a_claim_is_judged_at_its_own_delta() -> None:
    one = Release("r", "data", "x", (Guarantee(SERVER, CLIENT, GaussianLoss(0.26), "curve"),), Claim(1.0, 1e-5, "eps"))
    assert statement_of([one], delta=1e-9).rows[0].verdict == "claim proven"


def test_words_for_large_and_infinite_figures() -> None:
    def words(*releases: Release) -> str:
        return " ".join(sentences(statement_of(releases)))

    assert "no meaningful protection" in words(release(Pure(20.0)), release(Pure(0.5), "s"))
    assert "no meaningful protection" not in words(release(Pure(19.9)))
    unproven = words(release(Pure(1.0)), release(Infinite("labels are sent in clear"), "labels"))
    assert "nothing is proven" in unproven
    assert "labels are sent in clear" in unproven


def test_what_has_no_guarantee_for_a_view_makes_it_infinite() -> None:
    record = Guarantee(SERVER, Adjacency.RECORD_REPLACE, GaussianLoss(0.1), "curve")
    rows = statement_of([release(Pure(1.0)), Release("g", "data", "gradient", (record,))]).rows
    client, by_record = rows
    assert client.proven == math.inf
    assert "gradient has no guarantee" in client.unproven[0]
    assert by_record.proven < 2.0


def test_trust_is_named_for_every_onlooker() -> None:
    guarantees = tuple(
        Guarantee(who, CLIENT, Pure(e), "x", 20 if who.kind == "summed" else None)
        for who, e in ((SERVER, 4.0), (shuffled(50), 3.0), (summed(30), 2.0), (MODEL_READER, 1.0))
    )
    stated = statement_of([Release("r", "data", "x", guarantees)])
    assert [row.proven for row in stated.rows] == pytest.approx([4.0, 3.0, 2.0, 1.0], rel=1e-3)
    words = " ".join(map(trust, stated.views))
    assert "the server is not trusted; the shuffler is" in words
    assert "at least 30 honest clients" in words
    assert "the server is trusted" in words


def test_sampled_gaussians_keep_their_adjacency() -> None:
    def stated(adjacency: Adjacency) -> float:
        loss = PoissonGaussian(0.1, 2.0, 10)
        one = Release("r", "data", "steps", (Guarantee(SERVER, adjacency, loss, "sampling"),))
        return statement_of([one]).rows[0].proven

    assert stated(Adjacency.RECORD_REPLACE) > 1.5 * stated(Adjacency.RECORD_ADD_REMOVE)


def test_personal_budgets_are_a_vector() -> None:
    clients = {"anna": [release(Pure(1.0))], "ben": [release(Pure(1.0))], "cleo": [release(Pure(3.0))]}
    stated = statement_of(clients)
    assert [(row.clients, row.proven) for row in stated.rows] == [
        (("anna", "ben"), pytest.approx(1.0, rel=1e-4)),
        (("cleo",), pytest.approx(3.0, rel=1e-4)),
    ]
    assert "neither the mean nor the largest" in to_text(stated)


def test_derived_releases_cost_nothing_and_must_name_their_origin() -> None:
    derived = Release("model", "data", "model", (), composition=Derived(("r",)))
    assert statement_of([release(Pure(2.0)), derived], delta=0.0).rows[0].proven == 2.0
    with pytest.raises(UnsupportedLoss, match="r"):
        statement_of([derived])


def test_no_epsilon_without_adjacency_adversary_delta_and_basis() -> None:
    stated = statement_of(uploads(1, 10), audits={(SERVER, CLIENT): AuditBound(1.5, 0.95, 99, "likelihood ratio")})
    for row in stated.rows:
        said = view_sentences(View((row,)))[0]
        assert re.search(r"epsilon \S+ at delta \S+", said)
        assert "server" in said
        assert row.basis[0] in to_text(stated).replace("\n    ", " ")
    lines = to_text(stated).splitlines()
    header = lines[lines.index("All figures") + 1]
    assert all(word in header for word in ("what may change", "who is looking", "delta 1e-5", "verdict"))


def test_text_is_an_aligned_plain_table() -> None:
    lines = to_text(statement_of(uploads(1, 10), title="Run 7")).splitlines()
    assert lines[:2] == ["Run 7", "====="]
    first = lines.index("All figures") + 2
    starts = [match.start() for match in re.finditer(r"(?<=\s\s)\S|^\S", lines[first])]
    for row in lines[first + 1 : first + 4]:
        assert all(start == 0 or row[start - 1] == " " for start in starts if start < len(row))
    assert max(map(len, lines)) <= 120
    assert all(32 <= ord(c) < 127 for line in lines for c in line)


def test_json_is_exact_and_has_no_bare_infinity() -> None:
    packed = statement_of([release(Pure(0.1), claim=0.1), release(Infinite("why"), "s", claim=0.2)]).to_json()
    again = json.loads(json.dumps(packed, allow_nan=False))
    (row,) = again["rows"]
    assert row["proven"] == {"epsilon": "infinity", "delta": 1e-5, "unproven": ["why"]}
    assert row["claimed"]["epsilon"] == math.fsum([0.1, 0.2])
    assert (row["adversary"], row["adjacency"]) == ("server", "client")


EVERYTHING = {
    "anna": uploads(3, 10),
    "ben": [release(Infinite("labels are sent in clear"), claim=1.0)],
    "cleo": [
        Release("w", "data", "weights", (Guarantee(SERVER, CLIENT, GaussianLoss(0.1), "x"),), Claim(3.0, 1e-6, "eps")),
        Release("c", "data", "sample count", (Guarantee(SERVER, CLIENT, Pure(0.5), "a lemma"),)),
    ],
    "dora": [],
}  #: shuffled, unproven, claimed in part at a delta of its own, and silent


def test_a_statement_comes_back_from_json_as_it_was() -> None:
    audits = {(SERVER, CLIENT): AuditBound(0.1, 0.95, 1000, "likelihood ratio")}
    stated = statement_of(EVERYTHING, audits=audits, title="Run 7")
    planned = PlannedFor(CLIENT, "server")
    stated = replace(stated, caveats=("The number of rounds was not fixed.",), simulated=True, planned=planned)
    again = Statement.from_json(json.loads(json.dumps(to_json(stated))))
    assert again == stated
    assert (to_text(again), to_json(again)) == (to_text(stated), to_json(stated))


def test_a_statement_of_an_older_version_opens_and_says_the_same() -> None:
    """Such files lack the types of losses, what is proven at a claim's delta, and whether a run was simulated."""
    packed = json.loads((Path(__file__).parent.parent / "golden" / "statement_before_losses.json").read_text())
    stated = Statement.from_json(packed)
    assert stated.simulated
    written = to_json(stated)
    assert set(packed) <= set(written)
    for old, new in zip(packed["rows"], written["rows"], strict=True):
        assert {key: new[key] for key in old if key != "claimed"} == {k: v for k, v in old.items() if k != "claimed"}
        assert old["claimed"] is None or old["claimed"].items() <= new["claimed"].items()
    assert len(packed["sentences"]) == len(written["sentences"])


def test_a_statement_of_an_older_version_says_no_more_of_shared_noise_than_of_the_report_alone() -> None:
    """It was false in sums without a modulus, and a run's folder may be compared without computing it again."""
    record, replaced = Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE
    given = (
        Guarantee(SERVER, record, GaussianLoss(1.0), "one silo's"),
        Guarantee(summed(9), record, GaussianLoss(0.3), "nine silos'", 20),
        Guarantee(summed(9), replaced, GaussianLoss(0.6), "nine silos'", 20),
    )
    bits = Guarantee(summed(9), Adjacency.CLIENT, RandomizedBit(2**30, 4), "counts")
    now = statement_of([Release("a", "data", "sum", given), Release("b", "data", "bits", (*given[:1], bits))])
    packed = json.loads(json.dumps(to_json(now)))
    assert packed.pop("version") == 2
    stated = {(row.adversary, row.adjacency): row for row in now.rows}
    read = {(row.adversary, row.adjacency): row for row in Statement.from_json(packed).rows}
    sums = read.pop((summed(9), record))
    assert sums.proven == read[SERVER, record].proven > stated[summed(9), record].proven
    assert read.pop((summed(9), replaced)).proven == math.inf
    assert read.items() <= stated.items()


@pytest.mark.parametrize("damage", [{"rows": [{}]}, {"rows": None}, {"delta": "x"}, {"silent": 3}])
def test_a_damaged_statement_is_refused(damage: dict[str, object]) -> None:
    packed = {**statement_of(uploads(1, 10)).to_json(), **damage}
    with pytest.raises(InvalidInput, match="damaged"):
        Statement.from_json(packed)


def test_a_whole_clients_figure_leads_before_a_records_and_never_that_of_one_value() -> None:
    def lead(*guarantees: Guarantee) -> tuple[str, str]:
        return leading(statement_of([Release("r", "data", "x", guarantees)]).views).key

    value = Guarantee(SERVER, COORDINATE, Pure(0.1), "x")
    record = Guarantee(SERVER, Adjacency.RECORD_REPLACE, Pure(1.0), "x")
    unproven, proven = (Guarantee(SERVER, CLIENT, loss, "x") for loss in (Infinite("why"), Pure(9.0)))
    mixed = Guarantee(shuffled(50), CLIENT, Pure(2.0), "x")
    assert lead(value, record, proven) == ("server", "client")
    assert lead(value, record, proven, mixed) == ("shuffled", "client")
    assert lead(value, record, unproven) == ("server", "record (replace)")
    assert lead(value, unproven) == ("server", "client")


def test_columns_that_say_nothing_are_left_out() -> None:
    text = to_text(statement_of([release(GaussianLoss(0.1))]))
    assert "at delta 0" not in text and "verdict" not in text and "claim" not in text
    assert "Proven: a bound by theorem or enumeration" in text


def test_html_escapes_everything() -> None:
    hostile = Release(
        "r", "data", "x", (Guarantee(SERVER, CLIENT, Pure(1.0), "<script>alert(1)</script>"),),
        Claim(1.0, 0.0, "a < b & c"),
    )  # fmt: skip
    page = privacy_section(statement_of({"<b>eve</b>": [hostile]}, title="<i>t</i>"))
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "a &lt; b &amp; c" in page
    assert page.count("<table>") == page.count("</table>") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.44359, "0.444"), (1.0, "1"), (12.345, "12.3"), (999.4, "999"), (1417.0, "1,417"), (1417.2, "1,420"),
     (218_400.5, "218,000"), (1e10, "1e10"), (1e-5, "1e-5"), (math.inf, "infinite")],
)  # fmt: skip
def test_figures_have_three_digits(value: float, shown: str) -> None:
    assert figure(value) == shown


def test_a_claim_is_shown_only_for_the_adversary_it_is_about() -> None:
    guarantees = (
        Guarantee(SERVER, CLIENT, RandomizedBit(ONE, 100), "sum"),
        Guarantee(shuffled(100), CLIENT, RandomizedBit(ONE, 100), "a shuffler"),
    )
    about_shuffling = Claim(1.0, 0.0, "eps where shuffled", adversary=shuffled(100), covers="schedule")
    server, mixed = statement_of([Release("r", "data", "weights", guarantees, about_shuffling)]).rows
    assert server.claimed is None
    assert mixed.claimed is not None
    assert mixed.verdict == "claim not supported"


def partly(claim: float, weights: Loss = Pure(2.0), rest: Loss = Pure(0.5)) -> list[Release]:  # noqa: B008 (frozen)
    """Weights with a claim, and a sample count without one."""
    return [
        Release("w", "data", "weights", (Guarantee(SERVER, CLIENT, weights, "a theorem"),), Claim(claim, 0.0, "eps")),
        Release("c", "data", "sample count", (Guarantee(SERVER, CLIENT, rest, "a lemma"),)),
    ]


def test_a_claim_that_leaves_something_out_is_shown_for_what_it_covers() -> None:
    stated = statement_of(partly(3.0), delta=0.0)
    (row,) = stated.rows
    assert row.claimed is not None
    assert (row.claimed.epsilon, row.covered, row.unclaimed) == (3.0, ("weights",), ("sample count",))
    assert (row.proven, row.proven_as_claimed, row.verdict) == (2.5, 2.0, "partly claimed")
    assert (
        "Claimed in part (of weights; no claim speaks of sample count): epsilon 3 at delta 0 (eps); partly claimed; "
        "proven of the claimed part at that delta is 2, for this change and this onlooker."
    ) in sentences(stated)
    assert "3 (in part)" in to_text(stated)
    packed = stated.to_json()["rows"][0]
    assert (packed["claimed"]["covered"], packed["claimed"]["unclaimed"]) == (["weights"], ["sample count"])


@pytest.mark.parametrize("rest", [Pure(0.0), Pure(0.5), Infinite("sent as it is")], ids=["free", "cheap", "unproven"])
def test_a_claim_of_a_part_is_never_proven_of_the_whole(rest: Loss) -> None:
    """Even where all that was released loses less than is claimed: nobody has claimed it of the rest."""
    assert statement_of(partly(100.0, rest=rest)).rows[0].verdict == "partly claimed"


def test_a_claim_that_its_own_part_exceeds_is_not_supported() -> None:
    assert statement_of(partly(1.0), delta=0.0).rows[0].verdict == "claim not supported"
    assert statement_of(partly(1.0, Infinite("why"))).rows[0].verdict == "claim not supported"


def test_an_experiment_on_everything_does_not_refute_a_claim_of_a_part() -> None:
    audits = {(SERVER, CLIENT): AuditBound(2.4, 0.95, 1000, "likelihood ratio")}
    assert statement_of(partly(2.0), delta=0.0, audits=audits).rows[0].verdict == "partly claimed"


def test_releases_of_one_name_are_counted_where_only_some_are_claimed() -> None:
    releases = [release(Pure(0.1), f"r{k}", claim=0.1 if k < 10 else None) for k in range(15)]
    (row,) = statement_of(releases, delta=0.0).rows
    assert row.claimed is not None
    assert row.claimed.epsilon == pytest.approx(1.0)
    assert (row.covered, row.unclaimed) == (("report (10 of 15)",), ("report (5 of 15)",))


def test_that_a_part_is_free_is_no_claim_about_the_rest() -> None:
    """A claimed epsilon of 0 beside an upload of which nothing is claimed would read as if nothing were lost."""
    assert statement_of(partly(0.0), delta=0.0).rows[0].verdict == "no claim"


def test_clients_whose_claims_leave_something_out_are_counted() -> None:
    clients = {f"c{k}": partly(3.0, Pure(1.0 + k / 10)) for k in range(5)} | {"zoe": [release(Pure(1.0), claim=1.0)]}
    stated = statement_of(clients, delta=0.0)
    said = next(sentence for sentence in sentences(stated) if sentence.startswith("Claimed"))
    assert said.startswith("Claimed in part (of weights; no claim speaks of sample count): epsilon 1 (zoe) to 3 (c0")
    assert "partly claimed for 5 of 6 clients, claim proven for 1 of 6 clients" in said
    assert "1 .. 3 (in part)" in to_text(stated)


def test_where_nobody_lost_less_than_others_no_ends_are_told_whatever_was_claimed() -> None:
    clients = {f"c{k}": partly(3.0 + k, Pure(1.0 + k), Infinite("sent as it is")) for k in range(6)}
    text = to_text(statement_of(clients))
    assert "3 .. 8 (in part)" in text
    assert "least:" not in text and "most:" not in text


def test_a_claim_for_a_whole_schedule_is_made_once() -> None:
    claim = Claim(1.0, 0.002, "eps for all rounds", covers="schedule")
    rounds = [
        Release(f"r{i}", "data", "w", (Guarantee(SERVER, CLIENT, GaussianLoss(0.1), "curve"),), claim)
        for i in range(10)
    ]
    row = statement_of(rounds).rows[0]
    assert row.claimed is not None
    assert (row.claimed.epsilon, row.claimed.delta) == (1.0, 0.002)
