"""docs/deploy.md is followed from its beginning to a finished federation, every command as it is printed."""

import json
import re
import shlex
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from sordino.client.client import Client
from tests.flower.machines import CliRunner, Machines, app, free_ports

pytest.importorskip("flwr")
PAGE = (Path(__file__).parent.parent.parent / "docs/deploy.md").read_text()
MOST = 10  #: commands from nothing to a model, and to what it has cost
SECONDS = 900.0  #: in which a newcomer is done


def commands(page: str) -> list[str]:
    """The commands of the first part, in their order."""
    part = page.partition("## From nothing to a model")[2].partition("\n## ")[0]
    return [
        line[2:]
        for block in re.findall(r"```console\n(.*?)```", part, re.S)
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


@pytest.mark.timeout(900)
def test_the_page_leads_to_a_finished_federation_in_ten_commands_whatever_dies_on_the_way(machines):
    """The coordinator, a client, Flower's server and a node get SIGKILL; no round is lost, none paid for twice."""
    printed, said = commands(PAGE), ""
    assert len(printed) <= MOST
    assert printed[0].startswith("pip install 'sordino[")
    port = free_ports(5)
    for line in printed[1:]:
        name, *words = shlex.split(line)
        assert name == "sordino"
        match words[:2]:
            case ["deploy", "init"]:  # other tests run beside this one, on other ports
                machines.sordino(*words, "--port", port, "--node-port", port + 3)
            case ["deploy", "join"]:
                machines.sordino(*words, "--yes")  # the page answers the question
            case ["deploy", "up"]:
                machines.up(Path(words[2]).name)
            case ["deploy", "check"]:
                machines.until_round(1)
                machines.sordino(*words)
                watch(machines)
                kill_one_after_the_other(machines)
            case _:
                said = machines.sordino(*words)
    assert "in 4 releases" in said
    assert [(each["round"], each["reported"]) for each in machines.rounds()] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert (machines.run / "report.html").is_file()
    for member in machines.deployment.members:
        with Client.open(machines.folder / member / "client") as client:
            assert client.standing.releases == 4


def watch(machines: Machines) -> None:
    """The operator's link shows members by name; without its token nobody sees anything, and no log has one."""
    told = CliRunner().invoke(app, ["deploy", "live", str(machines.folder)]).stderr
    (address, token), *_ = re.findall(r"operator: (http://\S+)/live#token=(\S+)", told)
    assert token not in machines.said("server") + machines.logs()
    url = f"{address}/api/federations/quickstart"
    with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=10) as answer:
        told = json.load(answer)
    assert (told["role"], told["round"] >= 1) == ("operator", True)
    assert {each["name"] for each in told["live"]["members"]} == {"north", "south"}
    with pytest.raises(HTTPError) as refused:
        urlopen(url, timeout=10)
    refused.value.close()
    assert refused.value.code == 401


def kill_one_after_the_other(machines: Machines) -> None:
    """Until the federation is over."""
    (setup,) = machines.deployment.federations
    machines.kill("server", f"coordinator {setup.name}")
    machines.kill("north", "client")
    machines.until_round(2)
    machines.kill("server", "superlink")
    machines.until_round(3)
    machines.kill("south", "node")  # Flower refuses it for about a minute, and then it is back by itself
    assert machines.wait("server", SECONDS) == 0
    assert "about a minute" in machines.said("south")
    for member in machines.deployment.members:
        machines.down(member)
