"""What goes wrong for people, in a real browser: each is handled as they would hope, and said plainly."""

from __future__ import annotations

import os
import re
import struct
import zlib
from pathlib import Path

import pytest

from tests.browser.stage import Browser, play, served

GIGABYTES = 2


def picture(ink: int = 30) -> bytes:
    """A PNG of 20 x 20 grey pixels, dark on light, of one size in bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes(ink if 8 <= column < 12 else 250 for column in range(20)) for _ in range(20))
    head = struct.pack(">IIBBBBB", 20, 20, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def write_files(folder: Path) -> dict[str, dict[str, str]]:
    """Tables and pictures that people choose by mistake, and one good table."""
    head = ",".join([*(f"p{k}" for k in range(64)), "class"])

    def table(name: str, *rows: str, header: bool = True) -> str:
        (folder / name).write_text("\n".join([*([head] if header else []), *rows]) + "\n")
        return str(folder / name)

    numbers = ",".join(["3"] * 64)
    huge = folder / "huge.csv"
    with huge.open("wb") as file:
        file.truncate(GIGABYTES * 10**9)  # it takes no space: nothing is written
    (folder / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    (folder / "fine.png").write_bytes(picture())
    twin = folder / "twin" / "fine.png"  # another picture of that name, size and time
    twin.parent.mkdir()
    twin.write_bytes(picture(60))
    for path in (folder / "fine.png", twin):
        os.utime(path, (1, 1))
    return {
        "tables": {
            "text": table("text.csv", f"{numbers},1", f"{numbers.replace('3', 'abc', 1)},2"),
            "label": table("label.csv", f"{numbers},1", f"{numbers},12"),
            "short": table("short.csv", "1,2,3"),
            "huge": str(huge),
            "good": table("good.csv", f"{numbers},1", f"{numbers},2", f"{numbers},2"),
            "bare": table("bare.csv", f"{numbers},1", f"{numbers},2", header=False),
        },
        "images": {"torn": str(folder / "torn.png"), "fine": str(folder / "fine.png"), "twin": str(twin)},
    }


#: What was chosen, what the page must name of it, and whether it can use some of it, nothing of it, or has to ask.
NAMED = {
    "text": ("abc", "good"),
    "label": ("12", "good"),
    "short": ("line 2 has 3 columns, not 65", "bad"),
    "huge": ("longer than 16,777,216 characters", "bad"),
    "unsaid": ("what the first line of your table holds", ""),
    "bare": ("which of its columns is the class", ""),
    "torn": ("torn.png", "bad"),
}


def test_trouble_is_handled_and_said_plainly(browser: Browser, tmp_path: Path, subtests: pytest.Subtests) -> None:
    options = ("--invite", "--gather", "0", "--set", "rounds.quorum=1", "--set", "rounds.count=60")
    with served(tmp_path, "webfed-digits", *options, "--set", "clients.budget=") as server:
        tokens = re.findall(r"token=([^&\s]+)", server.said())
        told = play("trouble", browser, server, federation="webfed-digits", tokens=tokens, **write_files(tmp_path))

    for name, (named, kind) in NAMED.items():
        with subtests.test(f"a bad file or line is named: {name}"):
            assert named in told[name]["text"]
            assert told[name]["kind"] == f"note {kind}".strip()
            assert told[name]["seconds"] < 10

    with subtests.test("nothing of a chosen file leaves"):
        assert told["nothing left"]["sent"] == 0

    with subtests.test("a good table is counted, for the person alone"):
        assert told["good"]["text"].startswith("3 examples can be used: 1 of “1” and 2 of “2”.")

    with subtests.test("a table without a header is read once its owner says so"):
        assert told["said"]["text"].startswith("2 examples can be used: 1 of “1” and 1 of “2”.")
        assert told["said"]["label"] == "64"

    with subtests.test("a good picture is taken beside one that cannot be read"):
        assert told["fine"]["text"].startswith("1 example can be used: 1 of “0”.")
        assert "torn.png" in told["fine"]["text"]

    with subtests.test("another picture of the same name, size and time is another example"):
        assert told["twin"]["text"].startswith("2 examples can be used: 2 of “0”.")

    with subtests.test("whoever has nothing that can be used is told so, and could take part with noise alone"):
        for name in ("short", "torn"):
            assert "No example can be used." in told[name]["text"]
            assert told[name]["why"] == told["good"]["why"] != "Choose examples first."

    with subtests.test("a page that came without HTTPS from another machine says so and does not start"):
        assert "https" in told["without https"]["text"]
        assert "cannot take part" in told["without https"]["why"]
        assert told["without https"]["sent"] == 0

    with subtests.test("a forged invitation is turned away before anything is released"):
        assert "invitation is missing, forged or used up" in told["forged"]["text"]
        assert told["forged"]["records"] == 0

    with subtests.test("a page with a spent budget declines"):
        assert told["spent"]["text"] == "Your budget is used up"
        assert told["spent"]["records"] == 0
        assert any(one["declined"] > 0 and one["reports"] == 0 for one in told["end"]["participants"])

    with subtests.test("whoever goes to another view ends their part: its workers, and the screen that is kept on"):
        assert told["elsewhere"]["before"]["workers"] >= 3
        assert told["elsewhere"]["before"]["screen"] == 1
        assert told["elsewhere"]["after"] == {"workers": 0, "screen": 0}

    with subtests.test("a report with extra bits is refused, and the operator sees it"):
        assert told["refused"]["slots"] == 1
        assert re.match(r"Number 1, round \d+: .*2604 bytes, 2600 were expected", told["refused"]["text"])
        assert {one["client"] for one in told["end"]["refused"]} == {1}

    with subtests.test("a second tab says why it does not take part, and the first goes on"):
        assert "another tab" in told["second tab"]["text"]
        assert told["second tab"]["first"] not in ("failed", "left")

    with subtests.test("whoever pauses is told that nothing leaves, and whoever comes back finds what was spent"):
        assert "Nothing leaves while you pause" in told["left"]["paused"]
        strongest, weakest = told["left"]["budget"]
        assert strongest["before"] == weakest["before"] > 0, "the same, wherever the slider stands"

    with subtests.test("a budget that pays for no round does not start"):
        assert (strongest["rounds"], strongest["starts"]) == (0, False)
        assert weakest["rounds"] > 0
        assert weakest["starts"]

    with subtests.test("a key that is pressed twice leaves nothing for good"):
        assert told["left"]["stayed"] in ("waiting", "training", "randomising", "sending")

    with subtests.test("a sample that does not come is said, and may be tried again"):
        assert "the sample could not be fetched" in told["left offline"]["trouble"].lower()

    with subtests.test("the record is there without network"):
        assert told["left offline"]["read"]

    with subtests.test("a place that was left without network is given back when the page is opened again"):
        assert "The server hears of it" in told["left offline"]["told"]
        assert "used by somebody else" in told["left offline"]["taken"]

    with subtests.test("a page without network says so, and goes on when it is back"):
        assert "Nothing is lost" in told["network"]["away"]
        assert told["network"]["rounds"] == sorted(set(told["network"]["rounds"]))

    with subtests.test("a server that never answers is said, with what to do, and the same is tried again"):
        for when in ("shown", "begun", "live"):
            assert told["mute"][when]["meanwhile"].strip() == "Asking the server…"
            assert "Nothing came for 20 seconds: check your connection, sign in" in told["mute"][when]["text"]

    with subtests.test("whoever tries to begin again does so with the examples that were chosen"):
        assert told["mute"]["counted"].startswith("3 examples can be used")
        assert "invitation is missing, forged or used up" in told["mute"]["reached"]

    with subtests.test("the operator's view shows the federation that was chosen last, and follows no other"):
        assert told["chosen twice"]["open"] == 1

    with subtests.test("the operator frees a place in the live view"):
        assert told["freed"]["after"] == told["freed"]["before"] + 1
