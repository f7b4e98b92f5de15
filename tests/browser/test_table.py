"""A table in a page: matched by the names of its columns, learnt from, and asked about in a form."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from tests.browser.stage import Browser, play, served

COLUMNS = {"age": (0, 100), "weight": (30, 150), "pulse": (40, 180)}
RECIPE = """
name = "visits"
summary = "clinics learn who comes back"

[data]
source = "visits.csv"
label = "outcome"
classes = ["well", "back"]
test = 0.3

[data.columns]
{columns}

[split]
kind = "iid"
clients = 2

[model]
name = "logistic"

[training.optimizer]
name = "sgd"
lr = 2.0

[method]
name = "silo-dp"
sampling_rate = 0.5
steps = 2
announced_size = 300
target = {{ epsilon = 2.0, delta = 1e-5 }}

[rounds]
count = 3
quorum = 1
"""


def write_visits(folder: Path) -> Path:
    """A recipe, and a table with its columns in another order and one more."""
    draw = random.Random(1)
    lines = ["outcome,pulse,weight,age,ward"]
    for _ in range(400):
        back = draw.random() < 0.5
        age, pulse = draw.uniform(60, 95) if back else draw.uniform(18, 60), draw.gauss(95 if back else 70, 8)
        lines.append(f"{'back' if back else 'well'},{pulse:.0f},{draw.uniform(50, 110):.1f},{age:.1f},north")
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    columns = (f'{name} = {{ kind = "number", low = {low}, high = {high} }}' for name, (low, high) in COLUMNS.items())
    (folder / "visits.toml").write_text(RECIPE.format(columns="\n".join(columns)))
    return folder / "visits.csv"


def play_table(folder: Path, browser: Browser) -> dict[str, Any]:
    """Take part with a table, and try the model that came out of it."""
    table = write_visits(folder).with_name("own.csv")
    wrong = ["back,many,70,44,north", "gone,70,70,44,north", "back,70"]  # lines 402 to 404
    table.write_text("\n".join([(folder / "visits.csv").read_text().strip(), *wrong]) + "\n")
    with served(folder, "visits.toml", "--invite", "--gather", "0") as server:
        token = re.findall(r"token=([^&\s]+)", server.said())[0]
        return play("table", browser, server, federation="visits", token=token, table=str(table), label="outcome")


def test_a_table_is_matched_learnt_from_and_asked_about(browser: Browser, tmp_path: Path) -> None:
    told = play_table(tmp_path, browser)
    assert told["table"]["columns"] == list(COLUMNS)
    assert told["table"]["asked"] == {"value": "", "options": ["Choose…", "outcome", "ward"]}
    assert all(f"line {number}" in told["table"]["left"] for number in (402, 403, 404))
    assert all(name in told["table"]["matched"] for name in (*COLUMNS, "outcome"))
    assert "ward" not in told["table"]["matched"]
    assert told["table"]["fields"] == len(COLUMNS)
    assert told["table"]["found"] == []
    assert told["problems"]["found"] == []
