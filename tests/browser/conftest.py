from __future__ import annotations

import os

import pytest

from tests.browser.stage import Browser, browsers, missing

KINDS = [found.kind for found in browsers()] or ["chromium"]


def _found(kind: str) -> Browser:
    """A browser of that kind. Where there is none the test fails if one was promised, and is skipped otherwise."""
    found = next((one for one in browsers() if one.kind == kind), None)
    lacking = missing() or ("" if found else f"this test needs {kind}")
    if lacking and os.environ.get("SORDINO_NEEDS_BROWSER"):
        pytest.fail(f"{lacking} (SORDINO_NEEDS_BROWSER is set, as `make test` does where Chromium and npm are there)")
    if lacking or found is None:
        pytest.skip(lacking)
    return found


@pytest.fixture(scope="session")
def browser() -> Browser:
    """Chromium, which Playwright drives."""
    return _found("chromium")


@pytest.fixture(scope="session", params=KINDS)
def any_browser(request: pytest.FixtureRequest) -> Browser:
    """Each browser that is found."""
    return _found(request.param)
