"""Statements about many clients and many rounds: short to read, complete in JSON, and never one figure for all."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.privacy.statements import statement_of

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, Exponential, Gaussian, IntegerRange, Laplace, RandomizedSign, TwoPoint
from sordino.privacy.accountant import compose, equal_bits_epsilon
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Claim,
    Derived,
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
from sordino.privacy.statement import AuditBound, ClientSet, Statement
from sordino.report.privacy_section import privacy_section
from sordino.report.statement import sentences, to_text, trust
from sordino.report.words import upper

CLIENT, COORDINATE, RECORD = Adjacency.CLIENT, Adjacency.COORDINATE, Adjacency.RECORD_REPLACE


def release(loss: Loss, claim: Claim | None = None, adjacency: Adjacency = CLIENT, basis: str = "a theorem") -> Release:
    return Release("r", "data", "report", (Guarantee(SERVER, adjacency, loss, basis),), claim)


def bits(epsilon: float, values: int = 650, rounds: int = 1) -> list[Release]:
    """Uploads of two-point bits with LDP-FL's claim, as a simulated client makes them."""
    mechanism = TwoPoint(epsilon, Box())
    guarantees = tuple(mechanism.guarantee(adjacency, values=values) for adjacency in (CLIENT, COORDINATE))
    return [
        Release(f"{number}/update", "records", "update", guarantees, mechanism.claim(values=values))
        for number in range(rounds)
    ]


def twenty(rounds: int = 20) -> Statement:
    """Twenty clients with epsilons from 2 to 8 for each of 650 values."""
    return statement_of({f"client {k}": bits(2 + 6 * k / 19, rounds=rounds) for k in range(20)})


# --- many clients ---------------------------------------------------------------------------------------------------


def test_twenty_clients_are_a_page_to_read_and_forty_rows_of_json() -> None:
    stated = twenty()
    text = to_text(stated)
    assert len(text.splitlines()) < 50
    assert len(sentences(stated)) == 5  # trust, proven and claimed for the upload, proven for a value, not one for all
    assert len(stated.to_json()["rows"]) == 40
    assert privacy_section(stated).count("<tr>") == (1 + 4) + (1 + 40)  # figures, then groups: both folded away
    assert max(map(len, text.splitlines())) <= 120


def test_a_span_names_those_who_lost_least_and_most() -> None:
    stated = twenty()
    least, most = (equal_bits_epsilon(epsilon, 13_000, 1e-5) for epsilon in (2.0, 8.0))
    upload = sentences(stated)[1]
    assert f"from epsilon {upper(least)} (client 0)" in upload
    assert f"to epsilon {upper(most)} (client 19)" in upload
    assert "at delta 1e-5" in upload
    line = next(line.split() for line in to_text(stated).splitlines() if line.startswith("20 clients"))
    assert line[:9] == ["20", "clients", "client", "server", "26,000", "..", "104,000", upper(least), ".."]


@given(st.lists(st.floats(0.01, 1e4), min_size=2, max_size=30, unique_by=upper))
@settings(max_examples=50, deadline=None)
def test_every_figure_is_in_json_and_the_words_have_both_ends(epsilons: list[float]) -> None:
    clients = {f"c{k}": [release(Pure(epsilon))] for k, epsilon in enumerate(epsilons)}
    stated = statement_of(clients, delta=0.0)
    packed = {row["clients"][0]: row["proven"]["epsilon"] for row in stated.to_json()["rows"]}
    assert packed == {f"c{k}": epsilon for k, epsilon in enumerate(epsilons)}
    words = " ".join(sentences(stated))
    for end in (min, max):
        name = max(packed, key=lambda k: (packed[k] == end(packed.values()), k))
        assert f"epsilon {upper(end(epsilons))} ({name})" in words
    shown = [upper(epsilon) for epsilon in epsilons if min(epsilons) < epsilon < max(epsilons)]
    assert not any(f"epsilon {one} " in words for one in shown)


def test_a_handful_of_groups_is_listed_one_by_one() -> None:
    four = to_text(statement_of({f"c{k}": [release(Pure(1.0 + k))] for k in range(4)}))
    five = to_text(statement_of({f"c{k}": [release(Pure(1.0 + k))] for k in range(5)}))
    assert all(f"\nc{k} " in four for k in range(4))
    assert " .. " not in four
    assert "\nc2 " not in five
    assert "1 .. 5 [1]" in five


def test_those_who_share_an_end_are_counted() -> None:
    """Two groups with the same figure for other reasons, and a group of two: three clients lost least."""
    clients = {
        "anna": [release(Pure(1.0))],
        "ben": [release(Pure(1.0))],
        "cleo": [release(Pure(1.0), basis="a lemma")],
        **{f"c{k}": [release(Pure(2.0 + k))] for k in range(3)},
    }
    stated = statement_of(clients, delta=0.0)
    assert "from epsilon 1 (anna, ben and 1 more) to epsilon 4 (c2)" in sentences(stated)[1]


def test_equal_figures_of_unlike_groups_are_said_to_be_each_ones() -> None:
    clients = {name: [release(Pure(1.0), basis=f"lemma {name}")] for name in "abc"}
    stated = statement_of(clients, delta=0.0)
    assert "proven epsilon 1 at delta 0 for each of 3 clients." in sentences(stated)[1]


def test_meaningless_protection_is_counted() -> None:
    stated = statement_of({f"c{k}": [release(Pure(10.0 + 5 * k))] for k in range(6)}, delta=0.0)
    assert "no meaningful protection for 3 of 6 clients" in sentences(stated)[1]


def test_clients_without_a_proof_are_named_and_not_hidden_in_a_span() -> None:
    clients = {f"c{k}": [release(Pure(1.0 + k))] for k in range(5)}
    clients["zoe"] = [release(Infinite("labels are sent in clear"))]
    stated = statement_of(clients, delta=0.0)
    assert "differs between 5 of 6 clients" in sentences(stated)[1]
    assert "nothing is proven (epsilon is infinite) for 1 of 6 clients (zoe)" in sentences(stated)[2]
    assert "labels are sent in clear" in sentences(stated)[2]
    assert "1 .. infinite" in to_text(stated)


def test_claims_that_hold_for_some_only_are_counted() -> None:
    clients = {f"c{k}": [release(Pure(1.0 + k), Claim(3.0, 0.0, "three"))] for k in range(5)}
    clients |= {"c0's twin": clients["c0"], "zoe": [release(Pure(1.0))]}
    stated = statement_of(clients)
    said = next(sentence for sentence in sentences(stated) if sentence.startswith("Claimed"))
    assert (
        "claim proven for 4 of 7 clients, claim not supported for 2 of 7 clients, no claim for 1 of 7 clients" in said
    )
    assert "epsilon 3 at delta 0 (three)" in said
    assert "proven at the claim's delta is 1 (c0, c0's twin) to 5 (c4)" in said
    assert "claim proven (4), claim not supported (2), no claim (1)" in to_text(stated)


def test_an_audit_is_told_once() -> None:
    audits = {(SERVER, CLIENT): AuditBound(0.4, 0.95, 1000, "likelihood ratio")}
    stated = statement_of({f"c{k}": [release(Pure(1.0 + k))] for k in range(5)}, audits=audits)
    assert sum("Audited" in sentence for sentence in sentences(stated)) == 1
    assert ">= 0.4" in to_text(stated)


def test_classes_behind_shufflers_of_their_own_share_a_view() -> None:
    def own(crowd: int) -> list[Release]:
        guarantees = (
            Guarantee(SERVER, CLIENT, RandomizedBit(2**30, 1), "sum"),
            Guarantee(shuffled(crowd), CLIENT, RandomizedBit(2**30, 1), "a shuffler"),
        )
        return [Release("r", "data", "bits", guarantees)]

    stated = statement_of({f"c{n}": own(n) for n in (20, 30, 40, 50, 60)})
    server, behind = stated.views
    assert len(behind.rows) == 5
    assert all(row.proven < server.rows[0].proven for row in behind.rows)
    assert "shuffled(20 .. 60)" in to_text(stated)
    assert "that 20 to 60 clients send honest reports" in " ".join(map(trust, stated.views))
    said = next(sentence for sentence in sentences(stated) if "behind a shuffler of 20 to 60 clients" in sentence)
    assert f"{upper(behind.proven[0])} (c60, where an attacker surely reaches" in said


def test_several_secure_sums_of_one_client_stay_apart() -> None:
    guarantees = tuple(Guarantee(summed(n), CLIENT, Pure(1.0), "x", 20) for n in (10, 20))
    assert len(statement_of([Release("r", "data", "x", guarantees)]).views) == 2


def test_everybody_has_a_row_for_what_the_server_sees() -> None:
    behind = (*release(Pure(2.0)).guarantees, Guarantee(summed(9), CLIENT, Pure(1.0), "a sum", 20))
    clients = {
        "anna": [release(Pure(1.0))],
        "ben": [release(Pure(0.5), adjacency=RECORD)],
        "cleo": [Release("r", "data", "x", behind)],
    }
    rows = {(row.clients[0], str(row.adversary), row.adjacency): row.proven for row in statement_of(clients).rows}
    assert rows["ben", "server", CLIENT] == math.inf
    assert rows["anna", "server", RECORD] == pytest.approx(1.0, rel=1e-4)
    assert rows["cleo", "summed(9)", CLIENT] == pytest.approx(1.0, rel=1e-4)
    assert ("anna", "summed(9)", CLIENT) not in rows


def test_several_groups_need_names() -> None:
    with pytest.raises(InvalidInput, match="names"):
        Statement.of_groups([(ClientSet(), [(release(Pure(1.0)), 1)]), (ClientSet(("anna",), 1), [])])


def test_order_and_ids_of_releases_do_not_tell_clients_apart() -> None:
    one, two = release(Pure(1.0)), release(Pure(2.0))
    stated = statement_of({"anna": [one, two, one], "ben": [two, one, one]}, delta=0.0)
    assert [(row.clients, row.proven) for row in stated.rows] == [(("anna", "ben"), 4.0)]


# --- nothing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("releases", [[], {}, {"anna": []}], ids=["nothing", "nobody", "silence"])
def test_a_run_that_released_nothing_says_so(releases: list[Release] | dict[str, list[Release]]) -> None:
    stated = statement_of(releases, title="Run 7")
    assert to_text(stated).splitlines()[0] == "Run 7"
    assert "Nothing was released: no report left any client, so nothing was lost." in to_text(stated)
    assert "Nothing was released" in privacy_section(stated)
    assert "<table" not in privacy_section(stated)
    assert json.loads(json.dumps(stated.to_json()))["rows"] == []


def test_clients_who_sent_nothing_are_mentioned() -> None:
    stated = statement_of({"anna": [], "ben": [release(Pure(1.0))], "cleo": []})
    assert sentences(stated)[-1] == "Clients who sent nothing lost nothing: anna, cleo."
    assert [row.clients for row in stated.rows] == [("ben",)]
    assert stated.to_json()["silent"] == {"clients": ["anna", "cleo"], "count": 2, "members": ""}
    assert statement_of({"ben": [release(Pure(1.0))]}).to_json()["silent"] is None


# --- what a claim is set against --------------------------------------------------------------------------------------


def verdicts(releases: list[Release]) -> dict[Adjacency, str]:
    return {row.adjacency: row.verdict for row in statement_of(releases).rows}


def test_a_claim_for_whole_uploads_is_not_set_against_one_value() -> None:
    stated = statement_of(bits(2.0))
    client, coordinate = stated.rows
    assert (client.adjacency, client.verdict) == (CLIENT, "claim proven")
    assert client.claimed is not None and client.claimed.epsilon == 1300.0
    assert (coordinate.adjacency, coordinate.verdict, coordinate.claimed) == (COORDINATE, "no claim", None)
    assert coordinate.proven == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(
    "mechanism",
    [
        Laplace(3.0, Box()),
        Gaussian.eq4(1.0, 1 / 500, sampling=0.8, rounds=10, domain=Box(0, 200.0)),
        RandomizedSign.eq7(5.0, 1e-5, Box()),
        Exponential(0.01, IntegerRange(1.0, 2)),
    ],
    ids=["webfed", "personalised, Gaussian", "personalised, sign", "ldp-fed"],
)
def test_what_papers_claim_of_clients_is_refused_there_and_not_proven_elsewhere(
    mechanism: Laplace | Gaussian | RandomizedSign | Exponential,
) -> None:
    guarantees = tuple(mechanism.guarantee(adjacency, values=650) for adjacency in (CLIENT, COORDINATE))
    one = Release("r", "data", "weights", guarantees, mechanism.claim(values=650))
    assert verdicts([one] * 10) == {CLIENT: "claim not supported", COORDINATE: "no claim"}


def test_a_claim_about_the_client_is_about_its_records_and_their_labels_too() -> None:
    guarantees = tuple(Guarantee(SERVER, adjacency, Pure(2.0), "x") for adjacency in (RECORD, Adjacency.LABEL))
    assert verdicts([Release("r", "data", "x", guarantees, Claim(3.0, 0.0, "eps"))]) == {
        RECORD: "claim proven",
        Adjacency.LABEL: "claim proven",
    }


def test_a_claim_never_vanishes_for_want_of_a_proof() -> None:
    value = (Guarantee(SERVER, COORDINATE, Pure(1.0), "one value"),)
    client, coordinate = statement_of([Release("r", "data", "x", value, Claim(1.0, 0.0, "eps"))]).rows
    assert (client.adjacency, client.proven, client.verdict) == (CLIENT, math.inf, "claim not supported")
    assert coordinate.verdict == "no claim"


def test_claims_say_in_json_what_they_are_about() -> None:
    packed = statement_of(bits(2.0)).to_json()["rows"][0]["claimed"]
    assert packed["adjacency"] == "client"
    assert packed["epsilon"] == 1300.0


# --- many rounds ----------------------------------------------------------------------------------------------------


def test_a_basis_says_for_how_many_releases_it_holds() -> None:
    stated = statement_of([release(Pure(0.1), basis="a lemma")] * 10 + [release(Pure(0.1))])
    assert stated.rows[0].basis == ("10 x a lemma", "a theorem")
    assert "[1] 10 x a lemma; a theorem" in to_text(stated)


def test_one_value_of_one_upload_rests_on_one_release() -> None:
    client, coordinate = statement_of(bits(2.0, rounds=10)).rows
    assert client.basis == (f"10 x {coordinate.basis[0]}",)


def test_an_unprotected_upload_is_called_so_once() -> None:
    why = Infinite("no noise is added")
    guarantees = tuple(Guarantee(SERVER, adjacency, why, "none") for adjacency in (CLIENT, COORDINATE))
    stated = statement_of([Release("r", "data", "x", guarantees)] * 20)
    assert sentences(stated)[1:] == (
        "Everything one client sends and one value of one upload, seen by the server: nothing is proven (epsilon is "
        "infinite), because no noise is added.",
    )
    assert len(stated.rows) == 2
    assert to_text(stated).count("[1]") == 3  # a note that two rows share
    assert stated.rows[0].basis == ("none",)


def test_unprotected_uploads_of_unlike_clients_are_called_so_once() -> None:
    why = Infinite("no noise is added")
    guarantees = tuple(Guarantee(SERVER, adjacency, why, "none") for adjacency in (CLIENT, COORDINATE))
    one = Release("r", "data", "x", guarantees)
    stated = statement_of({f"c{k}": [one] * (k + 1) for k in range(9)})
    assert sum("nothing is proven (epsilon is infinite) for any client" in words for words in sentences(stated)) == 1


def test_reasons_that_differ_are_told_apart() -> None:
    guarantees = (
        Guarantee(SERVER, CLIENT, Infinite("no noise is added"), "none"),
        Guarantee(SERVER, COORDINATE, Infinite("values are ordered"), "none"),
    )
    assert len(sentences(statement_of([Release("r", "data", "x", guarantees)]))) == 3


def test_figures_for_records_say_that_the_client_is_not_covered() -> None:
    loss = PoissonGaussian(0.1, 2.0, 10)
    stated = statement_of([release(loss, adjacency=Adjacency.RECORD_ADD_REMOVE)])
    assert sentences(stated)[-1] == (
        "The figures cover one record added or removed only: of everything one client sends, taken together, nothing "
        "is proven."
    )
    assert "only: of" not in to_text(statement_of([release(Pure(1.0))]))


def test_derived_releases_do_not_count() -> None:
    derived = Release("model", "data", "model", (), composition=Derived(("r",)))
    assert statement_of([release(Pure(2.0)), *[derived] * 5]).rows[0].basis == ("a theorem",)


def test_shared_work_gives_the_figures_of_each_client_alone() -> None:
    rows = {row.clients[0]: row for row in twenty(rounds=3).rows if row.adjacency is CLIENT}
    for k in (0, 7, 19):
        alone = statement_of(bits(2 + 6 * k / 19, rounds=3)).rows[0]
        assert rows[f"client {k}"].proven == alone.proven
        assert alone.proven == compose(r.guarantees[0].loss for r in bits(2 + 6 * k / 19, rounds=3)).epsilon(1e-5)


def test_six_hundred_epsilons_take_seconds_at_most() -> None:
    """About half a second of work; a minute where every round's figure is computed anew."""
    groups = [(ClientSet((f"c{k}",), 16), [(bits(0.5 + k / 80)[0], 20)]) for k in range(600)]
    began = time.process_time()
    stated = Statement.of_groups(groups)
    to_text(stated)
    assert time.process_time() - began < 15
    assert len({row.proven for row in stated.rows}) == 1200
    assert "9,600 clients" in to_text(stated)
