"""The features that pages are compared with are what Python computes today."""

from __future__ import annotations

import json

from tests.golden import make_features


def test_features_that_pages_must_reproduce_are_those_of_python() -> None:
    assert json.loads(json.dumps(make_features.features())) == json.loads(make_features.FEATURES.read_text())
