"""What a statement says, to people and to programs, and what it refuses to say."""

import json
import math
import re

import pytest

from sordino.errors import InvalidInput, UnsupportedLoss
from sordino.privacy.guarantee import (
    MODEL_READER,
    SERVER,
    Adjacency,
    Claim,
    Derived,
    Gaussian,
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
from sordino.privacy.statement import Audited, ProofContradicted, Statement, figure

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
    client, coordinate, mixed = Statement.of(uploads()).rows
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
    client, row, _ = Statement.of(uploads(3, about=COORDINATE)).rows
    assert row.adjacency is COORDINATE
    assert row.claimed is not None
    assert row.claimed.epsilon == 1.0
    assert row.verdict == "claim proven"
    assert client.verdict == "no claim"


def test_audits_refute_claims_and_contradict_proofs() -> None:
    claimed_half = [release(Pure(3.0), claim=0.5)]
    refuted = Statement.of(claimed_half, audits={(SERVER, CLIENT): Audited(2.3, 0.95, 1000, "likelihood ratio")})
    assert refuted.rows[0].verdict == "claim refuted by experiment"
    assert "claim refuted by experiment" in refuted.to_text()
    weak = Statement.of(claimed_half, audits={(SERVER, CLIENT): Audited(0.4, 0.95, 1000, "likelihood ratio")})
    assert weak.rows[0].verdict == "claim not supported"
    with pytest.raises(ProofContradicted, match=r"3\.1"):
        Statement.of(claimed_half, audits={(SERVER, CLIENT): Audited(3.1, 0.95, 1000, "likelihood ratio")})


def test_an_audit_at_a_smaller_delta_than_the_claim_refutes_nothing() -> None:
    claim = Claim(1.0, 1e-3, "eps")
    one = Release("r", "data", "x", (Guarantee(SERVER, CLIENT, Gaussian(1.0), "curve"),), claim)
    stated = Statement.of([one], audits={(SERVER, CLIENT): Audited(1.2, 0.95, 10, "attack", delta=1e-9)})
    assert stated.rows[0].verdict == "claim not supported"


def test_a_claim_is_judged_at_its_own_delta() -> None:
    one = Release("r", "data", "x", (Guarantee(SERVER, CLIENT, Gaussian(0.26), "curve"),), Claim(1.0, 1e-5, "eps"))
    assert Statement.of([one], delta=1e-9).rows[0].verdict == "claim proven"


def test_an_audit_of_something_unstated_is_refused() -> None:
    with pytest.raises(InvalidInput, match="label"):
        Statement.of([release(Pure(1.0))], audits={(SERVER, Adjacency.LABEL): Audited(0.1, 0.9, 10, "x")})


def test_words_for_large_and_infinite_figures() -> None:
    def words(*releases: Release) -> str:
        return " ".join(Statement.of(releases).sentences)

    assert "no meaningful protection" in words(release(Pure(20.0)), release(Pure(0.5), "s"))
    assert "no meaningful protection" not in words(release(Pure(19.9)))
    unproven = words(release(Pure(1.0)), release(Infinite("labels are sent in clear"), "labels"))
    assert "nothing is proven" in unproven
    assert "labels are sent in clear" in unproven


def test_what_has_no_guarantee_for_a_view_makes_it_infinite() -> None:
    record = Guarantee(SERVER, Adjacency.RECORD_REPLACE, Gaussian(0.1), "curve")
    rows = Statement.of([release(Pure(1.0)), Release("g", "data", "gradient", (record,))]).rows
    client, by_record = rows
    assert client.proven == math.inf
    assert "gradient has no guarantee" in client.unproven[0]
    assert by_record.proven < 2.0


def test_trust_is_named_for_every_onlooker() -> None:
    guarantees = tuple(
        Guarantee(who, CLIENT, Pure(e), "x")
        for who, e in ((SERVER, 4.0), (shuffled(50), 3.0), (summed(30), 2.0), (MODEL_READER, 1.0))
    )
    stated = Statement.of([Release("r", "data", "x", guarantees)])
    assert [row.proven for row in stated.rows] == pytest.approx([4.0, 3.0, 2.0, 1.0], rel=1e-3)
    words = " ".join(stated.trust)
    assert "the server is not trusted; the shuffler is" in words
    assert "at least 30 honest clients" in words
    assert "the server is trusted" in words


def test_sampled_gaussians_keep_their_adjacency() -> None:
    def stated(adjacency: Adjacency) -> float:
        loss = PoissonGaussian(0.1, 2.0, 10)
        one = Release("r", "data", "steps", (Guarantee(SERVER, adjacency, loss, "sampling"),))
        return Statement.of([one]).rows[0].proven

    assert stated(Adjacency.RECORD_REPLACE) > 1.5 * stated(Adjacency.RECORD_ADD_REMOVE)


def test_personal_budgets_are_a_vector() -> None:
    clients = {"anna": [release(Pure(1.0))], "ben": [release(Pure(1.0))], "cleo": [release(Pure(3.0))]}
    stated = Statement.of(clients)
    assert [(row.clients, row.proven) for row in stated.rows] == [
        (("anna", "ben"), pytest.approx(1.0, rel=1e-4)),
        (("cleo",), pytest.approx(3.0, rel=1e-4)),
    ]
    assert "neither the mean nor the largest" in stated.to_text()


def test_derived_releases_cost_nothing_and_must_name_their_origin() -> None:
    derived = Release("model", "data", "model", (), composition=Derived(("r",)))
    assert Statement.of([release(Pure(2.0)), derived], delta=0.0).rows[0].proven == 2.0
    with pytest.raises(UnsupportedLoss, match="r"):
        Statement.of([derived])


def test_no_epsilon_without_adjacency_adversary_delta_and_basis() -> None:
    stated = Statement.of(uploads(1, 10), audits={(SERVER, CLIENT): Audited(1.5, 0.95, 99, "likelihood ratio")})
    for row in stated.rows:
        said = row.sentences[0]
        assert re.search(r"epsilon \S+ at delta \S+, by ", said)
        assert row.basis[0] in said
        assert "server" in said
    header = stated.to_text().splitlines()[3]
    assert all(word in header for word in ("what may change", "who is looking", "delta 1e-5", "verdict"))


def test_text_is_an_aligned_plain_table() -> None:
    lines = Statement.of(uploads(1, 10), title="Run 7").to_text().splitlines()
    assert lines[:2] == ["Run 7", "====="]
    starts = [match.start() for match in re.finditer(r"(?<=\s\s)\S|^\S", lines[4])]
    for row in lines[5:8]:
        assert all(start == 0 or row[start - 1] == " " for start in starts if start < len(row))
    assert max(map(len, lines)) <= 120
    assert all(32 <= ord(c) < 127 for line in lines for c in line)


def test_json_is_exact_and_has_no_bare_infinity() -> None:
    packed = Statement.of([release(Pure(0.1), claim=0.1), release(Infinite("why"), "s", claim=0.2)]).to_json()
    again = json.loads(json.dumps(packed, allow_nan=False))
    (row,) = again["rows"]
    assert row["proven"] == {"epsilon": "infinity", "delta": 1e-5, "unproven": ["why"]}
    assert row["claimed"]["epsilon"] == math.fsum([0.1, 0.2])
    assert (row["adversary"], row["adjacency"]) == ("server", "client")


def test_a_page_is_whole_and_takes_nothing_from_elsewhere() -> None:
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0), "a proof")
    page = Statement.of([Release("r", "d", "w", (guarantee,))], title="A & B").to_page()
    assert page.startswith("<!doctype html>")
    assert page.count("<section") == 1
    assert "A &amp; B</title>" in page
    assert "http" not in page and "<script" not in page


def test_html_escapes_everything() -> None:
    hostile = Release(
        "r", "data", "x", (Guarantee(SERVER, CLIENT, Pure(1.0), "<script>alert(1)</script>"),),
        Claim(1.0, 0.0, "a < b & c"),
    )  # fmt: skip
    page = Statement.of({"<b>eve</b>": [hostile]}, title="<i>t</i>").to_html()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "a &lt; b &amp; c" in page
    assert page.count("<table>") == page.count("</table>") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.44359, "0.444"), (1.0, "1"), (12.345, "12.3"), (999.4, "999"), (1417.0, "1.42e3"),
     (218_400.0, "2.18e5"), (1e10, "1e10"), (1e-5, "1e-5"), (math.inf, "infinite")],
)  # fmt: skip
def test_figures_have_three_digits(value: float, shown: str) -> None:
    assert figure(value) == shown


@pytest.mark.parametrize(
    "bad",
    [
        (-1.0, 0.95, 10, "x"),
        (math.inf, 0.95, 10, "x"),
        (1.0, 1.0, 10, "x"),
        (1.0, 0.95, 0, "x"),
        (1.0, 0.9, 1, "x", 1.0),
    ],
)
def test_bad_audits_are_refused(bad: tuple[float, float, int, str]) -> None:
    with pytest.raises(InvalidInput):
        Audited(*bad)


def test_a_claim_is_shown_only_for_the_adversary_it_is_about() -> None:
    guarantees = (
        Guarantee(SERVER, CLIENT, RandomizedBit(ONE, 100), "sum"),
        Guarantee(shuffled(100), CLIENT, RandomizedBit(ONE, 100), "a shuffler"),
    )
    about_shuffling = Claim(1.0, 0.0, "eps where shuffled", adversary=shuffled(100), covers="schedule")
    server, mixed = Statement.of([Release("r", "data", "weights", guarantees, about_shuffling)]).rows
    assert server.claimed is None
    assert mixed.claimed is not None
    assert mixed.verdict == "claim not supported"


def test_a_claim_for_a_whole_schedule_is_made_once() -> None:
    claim = Claim(1.0, 0.002, "eps for all rounds", covers="schedule")
    rounds = [
        Release(f"r{i}", "data", "w", (Guarantee(SERVER, CLIENT, Gaussian(0.1), "curve"),), claim) for i in range(10)
    ]
    row = Statement.of(rounds).rows[0]
    assert row.claimed is not None
    assert (row.claimed.epsilon, row.claimed.delta) == (1.0, 0.002)
