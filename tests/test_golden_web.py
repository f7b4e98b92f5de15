"""What pages are compared with is what Python computes today."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.golden import make_web

STORED: dict[str, Any] = json.loads(make_web.WEB.read_text())


@pytest.mark.parametrize("part", ["frames", "signing", "counts", "whole_noise", "whole_sums", "noisy_sums"])
def test_bytes_that_pages_must_reproduce_are_those_of_python(part: str) -> None:
    assert json.loads(json.dumps(getattr(make_web, part)())) == STORED[part]


@pytest.mark.parametrize("name", list(make_web.mechanisms()))
def test_reports_that_pages_must_reproduce_are_those_of_python(name: str) -> None:
    stored = next(row for row in STORED["reports"] if row["what"] == name)
    made = json.loads(json.dumps(make_web.report(name, make_web.mechanisms()[name])))
    for key, value in stored["loss"].items():
        assert made["loss"][key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-9))
    assert {**made, "loss": None} == {**stored, "loss": None}


def test_accounts_that_pages_must_reproduce_are_those_of_python() -> None:
    for made, stored in zip(make_web.accounts(), STORED["accounts"], strict=True):
        assert made["budget"] == stored["budget"]
        for ours, theirs in zip(made["spent"], stored["spent"], strict=True):
            assert ours == theirs if isinstance(theirs, str) else ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.process
@pytest.mark.parametrize("number", range(len(make_web.NETWORKS)))
def test_networks_that_pages_must_agree_with_are_those_of_python(number: int) -> None:
    made, stored = make_web.network(*make_web.NETWORKS[number]), STORED["networks"][number]
    assert made["model"] == json.loads(json.dumps(stored["model"]))
    np.testing.assert_allclose(made["scores"], stored["scores"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made["gradient"]["norm"], stored["gradient"]["norm"], rtol=1e-4)
    np.testing.assert_allclose(made["norms"], stored["norms"], rtol=1e-4)
