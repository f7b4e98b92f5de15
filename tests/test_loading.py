"""Modules load without Python looking for garbage, and afterwards everything is as it was."""

import gc

import pytest

from sordino.parts.lazy import loading


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_rests_while_modules_load_and_is_then_as_it_was(before):
    try:
        gc.enable() if before else gc.disable()
        with pytest.raises(ImportError), loading():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is before
    finally:
        gc.enable()
