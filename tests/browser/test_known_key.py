"""Under a key that the test knows, what leaves a page is what the encoder makes of its records with that key: no more.

The native client gets the same plans, the same records and the same key, and its answers are held against the page's.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from sordino import Recipe
from sordino.client.client import Client
from sordino.client.invitation import CommonTerms
from sordino.client.settings import Settings
from sordino.learning import datasets
from sordino.privacy.history import ranges
from sordino.randomness import KEY_BYTES, Keystream
from sordino.runs.federation import wire
from sordino.wire.messages import Answer, Plan
from sordino.wire.requests import Request, What
from tests.browser.leaving import check_frames, check_requests
from tests.browser.stage import Browser, play, served
from tests.client import people

KEY = 7
ALONE = ('method.aggregation={ kind = "mean" }', "rounds.quorum=1")  #: one page is enough; a rule needs more
SUMS = ("method.announced_size=500", "rounds.quorum=1")
REPORTS = 2
#: float32 values; bits, 650 of them in whole bytes; sums modulo 2^34 and 2^27, of second moments and of a gradient
BODY_BYTES = {"webfed-digits": 4 * 650, "two-point-digits": 82, "proven-digits": (5 * 54, *[4 * 1450] * 29)}
TOGETHER = {ALONE: ("webfed-digits", "two-point-digits"), SUMS: ("proven-digits",)}


def plans(received: list[dict[str, str]]) -> dict[int, Plan]:
    """The plans that came, by their rounds."""
    requests = [Request.decode(base64.b64decode(frame["binary"])) for frame in received if "binary" in frame]
    found = [Plan.decode(people.unsigned(request.payload)) for request in requests if request.what == What.STEP]
    return {plan.round: plan for plan in found}


def native(folder: Path, name: str, recipe: Recipe, federation: str) -> Client:
    """A native client with the records of the page's slot, and with the key that the page had."""
    data = {"source": "digits", "rows": ranges([int(k) for k in wire(recipe).parts[0]])}
    adjacency = "client" if name == "two-point-digits" else "record-add-remove"
    budget = {"limit": 1e6, "delta": 1e-5, "adjacency": adjacency}
    Client.create(folder, Settings.of({"data": data, "budget": budget})).close()
    key = bytes([KEY]) * KEY_BYTES
    client = Client.open(folder, randomness=lambda _: lambda clients: Keystream(key, [0] * len(clients), 0))
    terms = CommonTerms.of(recipe, federation, datasets.load("digits"), people.KEY.author)
    client.join(terms.invitation(0, people.KEY).encode())
    return client


@pytest.mark.parametrize("settings", TOGETHER, ids=["one release a round", "sums in stages"])
def test_a_report_is_what_the_encoder_makes_with_that_key(
    browser: Browser, tmp_path: Path, subtests: pytest.Subtests, settings: tuple[str, ...]
) -> None:
    names = TOGETHER[settings]
    options = [word for change in settings for word in ("--set", change)]
    with served(tmp_path, *names, *options, "--gather", "0", "--invite") as server:
        tokens = {name: re.findall(rf"federation={name}&token=([^&\s]+)", server.said())[0] for name in names}
        told = play("known_key", browser, server, federations=names, tokens=tokens, key=KEY, reports=REPORTS)
    for name in names:
        with subtests.test(name):
            recipe = Recipe.load(name, settings)
            check_requests(told[name]["requests"], server.url)
            reports = check_frames(told[name]["sent"], told[name]["received"], BODY_BYTES[name])
            asked = plans(told[name]["received"])
            assert len(reports) >= REPORTS
            with native(tmp_path / name, name, recipe, asked[reports[0].round].federation) as client:
                for report in reports[:REPORTS]:
                    message = people.signed(asked[report.round], given=recipe)
                    compare(name, report, Answer.decode(client.answer("report", message)))


def compare(name: str, report: Answer, expected: Answer) -> None:
    """Nothing is sent but the encoder's output; plain training alone rounds in another order."""
    assert (report.kind, report.round, report.digest) == (expected.kind, expected.round, expected.digest)
    if name == "two-point-digits":
        ours, theirs = (np.unpackbits(np.frombuffer(body, np.uint8)) for body in (report.body, expected.body))
        assert np.count_nonzero(ours != theirs) <= 1
    elif name == "proven-digits":
        assert report.body == expected.body
    else:
        ours, theirs = (np.frombuffer(body, "<f4") for body in (report.body, expected.body))
        assert np.max(np.abs(ours)) > 0.1, "the noise is there"
        np.testing.assert_array_equal(ours, theirs)  # whole numbers, the same in both, and a learning rate of 2
