"""In a real browser, by its threads and on a graphics card, networks agree with PyTorch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.browser.stage import WEB, Browser
from tests.golden import make_web

DEVICES = {"chromium": ["wasm", "webgpu"], "firefox": ["wasm"]}  #: only Chromium brings a card made of software


def test_scores_and_gradients_of_every_network_agree_with_pytorch(
    browser: Browser, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for device in DEVICES[browser.kind]:
        with subtests.test(device):
            wanted = tmp_path / f"{device}.json"
            asked = {"golden": str(make_web.WEB), "browser": browser.kind, "executable": browser.executable}
            wanted.write_text(json.dumps({**asked, "device": device}))
            command = ["node", "bench/run.mjs", str(wanted)]
            done = subprocess.run(command, cwd=WEB, capture_output=True, text=True, timeout=170, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
            found = json.loads(done.stdout)
            assert found["device"] == device
            assert len(found["away"]) == len(make_web.NETWORKS)
            assert max(found["away"]) < 1e-4
