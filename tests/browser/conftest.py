from __future__ import annotations

import os

import pytest

from tests.browser.stage import Browser, browsers, missing

KINDS = [found.kind for found in browsers()] or ["none"]


@pytest.fixture(scope="session", params=KINDS)
def browser(request: pytest.FixtureRequest) -> Browser:
    """Each browser that is found; the test is skipped, with what is lacking, where there is none."""
    lacking = missing()
    if lacking and os.environ.get("SORDINO_NEEDS_BROWSER"):
        pytest.fail(f"{lacking} (SORDINO_NEEDS_BROWSER is set, as `make test` does where Chromium and npm are there)")
    if lacking:
        pytest.skip(lacking)
    return next(found for found in browsers() if found.kind == request.param)
