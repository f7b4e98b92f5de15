"""The relay hands bytes on and nothing else; the app that carries it is one that Flower takes."""

import grp
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.client.socket_service import Service, SocketUnavailable
from sordino.errors import InvalidInput
from sordino.flower import QUIET, FlowerMissing, bundles, write_app
from sordino.flower.app import app_name
from sordino.flower.client_app import SOCKET, app
from sordino.flower.coordinator import CoordinatorSettings, make_coordinator
from sordino.recipe import Recipe
from sordino.wire import requests
from sordino.wire.codec import join
from sordino.wire.requests import Request, Response, What
from tests.client import people
from tests.flower.nodes import archive

ROOT = Path(__file__).parent.parent.parent


# --- bundles


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=bundles.MOST))
def test_frames_come_out_of_a_bundle_as_they_went_in(bodies):
    assert bundles.unpack(join(*bodies)) == bodies


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_bytes_from_anywhere_are_frames_or_refused(raw):
    try:
        bodies = bundles.unpack(raw)
    except InvalidInput:
        return
    assert join(*bodies) == raw


def test_a_bundle_has_a_largest_number_of_frames():
    with pytest.raises(InvalidInput, match="at most 16"):
        bundles.unpack(join(*[b""] * 17))


# --- the relay


def message(content: RecordDict) -> Message:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    found = Message(content, 7, "query", ttl=5.0)
    found.metadata.__dict__["_message_id"] = "m"
    return found


def relayed(content: RecordDict, path: Path | None, run_config: dict[str, str] | None = None) -> list[bytes]:
    own = {} if path is None else {SOCKET: str(path)}
    reply = app(message(content), Context(1, 7, own, RecordDict(), dict(run_config or {})))
    assert list(reply.content) == ["sordino"] and list(reply.content["sordino"]) == ["frames"]
    return bundles.unpack(bundles.bundle_in(reply))


@pytest.fixture
def echoing(tmp_path: Path) -> Iterator[Path]:
    """A client that answers everything with the same bytes reversed, and hangs up when it is told to."""
    path = tmp_path / "s"
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with suppress(OSError, requests.Closed), listening.accept()[0] as connection:
                while (body := requests.receive(connection)) != b"hang up":
                    requests.send(connection, body[::-1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path


def test_requests_go_in_and_responses_come_out_in_their_order(echoing):
    own = Request(What.RECEIPT, "f", b"own").encode()
    shared = bundles.array(join(b"first", b"second"))
    found = relayed(bundles.content(shared, join(own)), echoing)
    assert found == [own[::-1], b"tsrif", b"dnoces"]


def test_a_client_that_hangs_up_has_given_fewer_responses(echoing):
    assert relayed(bundles.content(bundles.array(join(b"first", b"hang up", b"third"))), echoing) == [b"tsrif"]


def test_a_client_that_is_not_there_gives_none_and_its_path_stays_at_home(tmp_path, capsys):
    assert relayed(bundles.content(bundles.array(join(b"first"))), tmp_path / "nobody") == []
    assert "sordino client serve" in capsys.readouterr().out  # in the owner's own log


def test_no_message_and_no_run_names_the_socket(echoing, tmp_path):
    content = bundles.content(bundles.array(join(b"x")))
    content["config"] = ConfigRecord({SOCKET: str(echoing), "socket": str(echoing)})
    assert relayed(content, tmp_path / "nobody", {SOCKET: str(echoing)}) == []
    with pytest.raises(InvalidInput, match="--node-config"):
        relayed(content, None, {SOCKET: str(echoing)})


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"sordino": ArrayRecord({"frames": Array(np.zeros(4, np.float32))})}),
        RecordDict({"sordino": ArrayRecord({"frames": Array(np.zeros((2, 2), np.uint8))})}),
        RecordDict({"sordino": ArrayRecord({"frames": Array("uint8", (4,), "numpy.ndarray", b"rubbish")})}),
        RecordDict({"sordino": ArrayRecord({"frames": Array("uint8", (4,), "numpy.ndarray", archive())})}),
        RecordDict({"sordino": ConfigRecord({"frames": b"\x01\x00\x00\x00a"})}),
        RecordDict({"sordino": ArrayRecord({"frames": Array(np.full(4, 255, np.uint8))})}),
    ],
    ids=["nothing", "floats", "a table", "rubbish", "an archive", "no array", "cut off"],
)
def test_what_is_no_bundle_is_refused_and_reaches_no_client(content, echoing):
    with pytest.raises(InvalidInput):
        relayed(content, echoing)


def test_a_response_that_is_none_is_refused():
    assert bundles.responses(join(Response(True, b"x").encode())) == [Response(True, b"x")]
    with pytest.raises(InvalidInput):
        bundles.responses(join(b"SAno"))


def test_a_socket_can_be_opened_to_the_group_of_the_nodes_account_and_the_folder_stays_closed(tmp_path):
    group = grp.getgrgid(os.getgid()).gr_name
    with people.client(tmp_path / "c") as client:
        service = Service(client, tmp_path / "s", group=group)
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660
        assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
        service._listening.close()
        with pytest.raises(SocketUnavailable, match="no-such-group"):
            Service(client, tmp_path / "t", group="no-such-group")
        assert not (tmp_path / "t").exists()


# --- what is loaded


def python(program: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in QUIET}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_relay_loads_no_learning_stack_and_flower_is_quiet_when_it_loads():
    program = (
        "import sys, sordino.flower; early = 'flwr' in sys.modules\n"
        "import sordino.flower.client_app\n"
        "from flwr.supercore import telemetry\n"
        "print(early, sorted({'torch', 'ray', 'pydantic'} & set(sys.modules)), telemetry.FLWR_TELEMETRY_ENABLED)"
    )
    assert python(program) == "False [] 0"
    assert python("import sordino.flower, os; print(os.environ['RAY_USAGE_STATS_ENABLED'])") == "0"


def test_where_flower_is_missing_the_remedy_is_named():
    program = (
        "import sys; sys.modules['flwr'] = None\n"
        "import sordino, sordino.flower\n"
        "from sordino.flower import write_app\n"
        "try:\n    import sordino.flower.server_app\n"
        "except sordino.flower.FlowerMissing as error:\n    print(error)"
    )
    assert python(program) == "Flower is not installed: pip install 'sordino[flower]'"
    assert issubclass(FlowerMissing, ImportError)


# --- the app


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_takes_the_app_which_holds_nothing_of_the_federation(tmp_path):
    folder = write_app(tmp_path / "an-app", "digits_demo.2", tmp_path / "c.sock")
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert warnings == []
    assert config["project"]["name"] == "sordino-digits-demo-2"
    assert config["tool"]["flwr"]["app"]["config"] == {"coordinator": str(tmp_path / "c.sock")}
    assert b"federation/server.py" in build_fab_from_disk(folder)
    assert not [path for path in folder.rglob("*") if path.suffix in (".key", ".json") or path.name == "recipe.toml"]
    write_app(folder, "other", tmp_path / "d.sock")  # again, over its own files
    assert "d.sock" in (folder / "pyproject.toml").read_text()


def test_an_app_is_not_written_over_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"notes\.txt"):
        write_app(tmp_path, "digits", tmp_path / "c.sock")


@pytest.mark.parametrize(
    ("channel", "more", "said"),
    [
        ({}, {"federation": "a b"}, "'a b'"),
        ({}, {"members": ("a", "b")}, "2 clients"),
        ({}, {"members": ("a", "b", "b")}, "2 different"),
        ({}, {"members": ("a", "b", "c,d")}, "'c,d'"),
        ({}, {"wait": 0.0}, "seconds > 0"),
        ({"kind": "shuffled", "granularity": "parameter"}, {}, "kind = summed"),
    ],
    ids=["name", "too few", "twice", "comma", "wait", "shuffled by the server"],
)
def test_a_coordinator_that_could_not_run_is_refused(tmp_path, channel, more, said):
    tables = people.method_recipe("ldp-fl").to_dict()
    tables["method"]["channel"] = channel or {"kind": "direct"}
    with pytest.raises(InvalidInput, match=said):
        given = CoordinatorSettings(**{"federation": "digits"} | more)
        make_coordinator(tmp_path / "own", Recipe.from_dict(tables), given, people.KEY)
    assert not (tmp_path / "own").exists()


@settings(deadline=None)
@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True))
def test_every_federation_has_a_name_that_flower_allows(federation):
    from flwr.supercore.utils import is_valid_name

    assert is_valid_name(app_name(federation))[0]


@pytest.mark.parametrize("text", ["", "federation = 3", 'federation = "a"\nstrange = 1', "nonsense"])
def test_settings_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "coordinator.toml").write_text(text)
    with pytest.raises(InvalidInput, match=r"coordinator\.toml"):
        CoordinatorSettings.read(tmp_path)


def test_settings_are_read_as_they_were_written(tmp_path):
    given = CoordinatorSettings("demo", ("north", "south"), wait=5.0, group="flower", shuffler_token="a.token")
    (tmp_path / "coordinator.toml").write_text(given.to_toml())
    assert CoordinatorSettings.read(tmp_path) == given


# --- the page


PAGE = (ROOT / "docs" / "flower.md").read_text()


def test_the_page_names_every_setting():
    named = set(re.findall(r"`([a-z_]+)`", " ".join(re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE))))
    assert {field.name for field in fields(CoordinatorSettings)} <= named
    assert f"`{SOCKET}`" in PAGE
