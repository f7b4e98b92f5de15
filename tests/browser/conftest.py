from __future__ import annotations

import os

import pytest

from tests.browser.stage import Browser, browsers, missing

KINDS = [found.kind for found in browsers()] or ["none"]


def _found(kind: str) -> Browser:
    """A browser of that kind; the test is skipped, with what is lacking, where there is none."""
    lacking = missing()
    if lacking and os.environ.get("SORDINO_NEEDS_BROWSER"):
        pytest.fail(f"{lacking} (SORDINO_NEEDS_BROWSER is set, as `make test` does where Chromium and npm are there)")
    found = next((one for one in browsers() if one.kind == kind), None)
    if lacking or found is None:
        pytest.skip(lacking or f"this test needs {kind}")
    return found


@pytest.fixture(scope="session")
def browser() -> Browser:
    """Chromium, which Playwright drives."""
    return _found("chromium")


@pytest.fixture(scope="session", params=KINDS)
def any_browser(request: pytest.FixtureRequest) -> Browser:
    """Each browser that is found."""
    return _found(request.param)
