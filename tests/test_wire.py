"""The wire format: golden files are read and written byte for byte, and another version is refused with the remedy."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.channels import secagg, secure_sum
from sordino.client.invitation import Invitation
from sordino.errors import SordinoError
from sordino.shuffler.envelopes import Body, seal
from sordino.shuffler.parallel import open_batch
from sordino.shuffler.terms import Terms
from sordino.wire.messages import Answer, Kind, Plan
from sordino.wire.receipt import Seal
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Author, Envelope
from tests.golden import wire

GOLDEN = wire.kept()
INDEX = json.loads(wire.INDEX.read_text())
PAGE = Path(__file__).parents[1] / "docs" / "wire.md"
SERVER = X25519PrivateKey.from_private_bytes(wire.KEY)


def test_encoders_write_the_golden_files_byte_for_byte():
    made = wire.made()
    assert sorted(made) == sorted(name for name in GOLDEN if not name.startswith("envelopes-"))
    differing = [name for name in made if made[name] != GOLDEN[name]]
    assert not differing, "a format changed without its version: raise that, and run python -m tests.golden.wire"


def test_the_index_describes_every_file():
    assert json.loads(json.dumps(wire.index(GOLDEN))) == INDEX
    assert all(hashlib.sha256(GOLDEN[name]).hexdigest() == row["sha256"] for name, row in INDEX["files"].items())


@pytest.mark.parametrize("name", ["plan", "plan-bare"])
def test_plans_are_read(name):
    expected = {"plan": wire.plan, "plan-bare": wire.bare_plan}[name]()
    found = Plan.decode(GOLDEN[name])
    assert (found.federation, found.round, found.settings) == (expected.federation, expected.round, expected.settings)
    assert {k: (v.shape, v.tolist()) for k, v in found.arrays.items()} == {
        k: (v.shape, v.tolist()) for k, v in expected.arrays.items()
    }
    assert found.encode() == GOLDEN[name]
    assert found.digest == hashlib.sha256(GOLDEN[name]).digest()[:16]


def test_answers_are_read():
    report, declined = (Answer.decode(GOLDEN[f"answer-{what}"]) for what in ("report", "declined"))
    digest = bytes.fromhex(INDEX["plan_digest_hex"])
    assert report == Answer(Kind.REPORT, wire.ROUND, digest, GOLDEN["report-bits"])
    assert declined == Answer(Kind.DECLINED, wire.ROUND, digest)


def test_requests_and_responses_are_read():
    assert Request.decode(GOLDEN["request-hello"]) == Request(What.HELLO)
    assert Request.decode(GOLDEN["request-join"]) == Request(What.JOIN, "", GOLDEN["invitation"])
    assert Request.decode(GOLDEN["request-step"]) == Request(What.STEP, "report", GOLDEN["signed-plan"])
    assert Request.decode(GOLDEN["request-receipt"]) == Request(What.RECEIPT, wire.FEDERATION, GOLDEN["receipt"])
    fine = Response(True, GOLDEN["answer-report"], "", GOLDEN["receipt"])
    assert Response.decode(GOLDEN["response-fine"]) == fine
    assert Response.decode(GOLDEN["response-refused"]) == Response(False, b"", "not agreed", b"")


def test_signed_messages_are_read_and_their_signatures_hold():
    plan, step = (Envelope.decode(GOLDEN[name]) for name in ("signed-plan", "signed-sum"))
    assert (plan.message, step.message) == (GOLDEN["plan"], GOLDEN["sum-masked-to-2"])
    assert plan.is_about(wire.plan()) and step.is_about(wire.plan())
    assert [client for client in range(20) if plan.is_for(client)] == [0, 2, 9]
    assert plan.terms == step.terms == Invitation.decode(GOLDEN["invitation"]).common.digest
    assert plan.terms.hex() == INDEX["terms_digest_hex"]
    first, next = wire.author().key, Author(wire.author().first, (GOLDEN["rotation"],)).key
    assert plan.is_signed("report", first) and step.is_signed("masked", next)
    assert not plan.is_signed("prepare", first) and not step.is_signed("masked", first)


def test_invitations_and_receipts_are_read():
    assert Invitation.decode(GOLDEN["invitation"]) == wire.invitation()
    assert Seal(wire.KEY).head(wire.FEDERATION, GOLDEN["receipt"]) == "11" * 32


@pytest.mark.parametrize("kind", wire.SUMS)
def test_a_secure_sum_is_read_by_a_server_that_draws_nothing(kind):
    """Fed with the recorded answers, the server sends the recorded requests, and finds the sum."""
    assert secagg.Session.decode(GOLDEN[f"{kind}-session"]) == wire.session(kind)
    server = secagg.SumServer(wire.session(kind), (*wire.SUMS[kind], 9))
    for step in secagg.STEPS:
        for client, request in server.requests(step).items():
            if (answer := GOLDEN.get(f"{kind}-{step}-from-{client}")) is not None:
                assert request == GOLDEN[f"{kind}-{step}-to-{client}"]
                server.receive(step, client, answer)
    assert server.summed == tuple(wire.SUMS[kind])
    assert server.total().tolist() == np.sum(list(INDEX[kind].values()), axis=0).tolist()


def test_every_step_of_both_sums_is_recorded_both_ways():
    for kind, added in wire.SUMS.items():
        there = {step: (*added, 9) if step in ("keys", "shares") else tuple(added) for step in secagg.STEPS}
        wanted = {f"{kind}-{step}-{way}-{c}" for step in there for c in there[step] for way in ("to", "from")}
        assert wanted == {name for name in GOLDEN if name.startswith(f"{kind}-") and name[-1].isdigit()}


def test_the_plan_comes_with_the_invitation_to_a_sum():
    assert secure_sum.plan_in(GOLDEN["sum-invitation"]).encode() == GOLDEN["plan"]
    request, _ = secure_sum._without_plan(GOLDEN["sum-invitation"])
    assert secagg.invitation(request) == wire.session()


def test_envelopes_and_batches_are_read():
    terms = Terms.from_json(GOLDEN["terms"])
    assert terms == wire.terms()
    for name in ("envelopes-body-0", "envelopes-body-1", "envelopes-body-2"):
        body = Body.decode(GOLDEN[name])
        body.check(terms)
        assert body.encode() == GOLDEN[name]
    opened = open_batch(GOLDEN["envelopes-batch"], terms, SERVER)
    assert (opened.group, opened.clients, dict(opened.refused)) == (0, 3, {})
    assert opened.counts().tolist() == np.sum(INDEX["envelopes"], axis=0).tolist()


def test_new_envelopes_have_the_form_of_the_golden_ones():
    """What is sealed is new every time; all that is outside is the same."""
    (body,) = seal(bytes([0b01101]), wire.terms(), 0, SERVER.public_key())
    outside = len(body) - Body.decode(body).envelopes.size
    assert len(body) == len(GOLDEN["envelopes-body-0"])
    assert body[:outside] == GOLDEN["envelopes-body-0"][:outside]


READERS = {
    "plan": Plan.decode,
    "answer-report": Answer.decode,
    "signed-plan": Envelope.decode,
    "rotation": lambda raw: Author(wire.author().first, (raw,)),
    "request-step": Request.decode,
    "response-fine": Response.decode,
    "invitation": Invitation.decode,
    "receipt": lambda raw: Seal(wire.KEY).head(wire.FEDERATION, raw),
    "envelopes-body-0": Body.decode,
    "envelopes-batch": lambda raw: open_batch(raw, wire.terms(), SERVER),
    "sum-keys-from-0": lambda raw: _server_at_keys("sum").receive("keys", 0, raw),
    "sparse-sum-keys-from-0": lambda raw: _server_at_keys("sparse-sum").receive("keys", 0, raw),
}


def _server_at_keys(kind):
    server = secagg.SumServer(wire.session(kind), (*wire.SUMS[kind], 9))
    server.requests("keys")
    return server


@pytest.mark.parametrize("name", READERS)
def test_another_version_is_refused(name):
    READERS[name](GOLDEN[name])
    newer = GOLDEN[name][:2] + bytes([GOLDEN[name][2] + 1]) + GOLDEN[name][3:]
    with pytest.raises(SordinoError):
        READERS[name](newer)


def test_the_page_names_every_golden_file_and_every_magic():
    text = PAGE.read_text()
    magics = {data[:2].decode() for name, data in GOLDEN.items() if name in READERS}
    assert magics == {"SC", "SK", "SP", "SR", "SQ", "SA", "SI", "SH", "SE", "SB", "SS"}
    assert all(f"`{magic}`" in text for magic in magics)
    steps = (re.sub(r"^(sparse-sum|sum)-[a-z]+-(to|from)", r"\1-STEP-\2", name) for name in GOLDEN)
    families = {re.sub(r"-\d$", "", name) for name in steps}
    missing = [name for name in families if f"`{name}" not in text]
    assert not missing
