"""A federation that is over begins anew under its address: by the operator alone, and whenever the server is killed."""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request

import numpy as np
import pytest
from safetensors.numpy import load_file

from sordino.client.client import Client
from sordino.errors import InvalidInput
from sordino.recipe import Recipe
from sordino.storage.files import InUse
from sordino.web import renewal
from sordino.web.app import Site
from sordino.web.hosted_federation import HostedFederation, HostingRules
from sordino.web.native_participant import Link
from tests.web.test_join import Member, native
from tests.web.visitors import fetch, get, hosted, operate, serving, strangers, visit

AGAIN = "/api/federations/demo/again"


async def take_part(port, found, secret="a", **changes):
    async with visit(port, found, secret, **changes) as visitor:
        return await visitor.rounds()


def told(port):
    return get(port, "/api/federations/demo")


def finish(port, found, **changes):
    """One participant goes through all rounds; how many there were."""
    count = asyncio.run(take_part(port, found, **changes))
    end = time.monotonic() + 20
    while told(port)["state"] != "finished":
        assert time.monotonic() < end
        time.sleep(0.05)
    return count


def over(folder, **options):
    """A federation that is over, and stopped."""
    found = hosted(folder, **options)
    with serving(Site({"demo": found})) as port:
        finish(port, found)
    return found


def test_a_finished_federation_begins_anew_and_the_one_before_is_kept(tmp_path):
    site = Site({"demo": (found := hosted(tmp_path, shared_link=True))})
    with serving(site) as port:
        assert operate(port, "POST", AGAIN) == 409  # it is not over
        token = {"token": found.link.token}
        assert finish(port, found, **token) == 2
        before = told(port)
        kept = sorted(path.name for path in found.run_folder.iterdir())
        assert operate(port, "POST", AGAIN, body={"rounds": 3, "from_model": False}) == 200
        after, now = told(port), site.federations["demo"]
        assert (after["state"], after["round"], after["rounds"], after["history"]) == ("waiting", 0, 3, [])
        assert after["federation"] == now.federation != before["federation"]
        assert after["task_digest"] != before["task_digest"]
        assert (after["link"], after["participants"], after["free"]) == (before["link"], 0, 3)
        past = tmp_path / "demo" / "past" / before["federation"]
        assert sorted(path.name for path in (past / "run").iterdir()) == kept
        assert (past / "participants.jsonl").is_file()
        assert fetch(port, "/api/federations/demo/model.safetensors")[0] == 404
        assert fetch(port, "/api/federations/demo/model.bin")[1]["X-Sordino-Round"] == "0"
        assert finish(port, now, **token) == 3
        assert operate(port, "POST", AGAIN) == 200  # and once more, with the recipe's own rounds
        assert told(port)["rounds"] == 2
        assert len(list((tmp_path / "demo" / "past").iterdir())) == 2


def test_budgets_count_on_in_the_participants_own_records(tmp_path):
    site = Site({"demo": (found := hosted(tmp_path))})
    folder = native(tmp_path / "client", "0-19")

    def join(port, hosted):
        member = Member(folder, Link(f"http://127.0.0.1:{port}", "demo"), hosted.federation)
        member.join(60)
        assert member.error is None
        assert member.result.ended
        with Client.open(folder) as client:
            return client.standing

    with serving(site) as port:
        first = join(port, found)
        while told(port)["state"] != "finished":
            time.sleep(0.05)
        assert operate(port, "POST", AGAIN) == 200
        second = join(port, site.federations["demo"])
    assert (first.releases, second.releases) == (2, 4)
    assert second.spent > 1.5 * first.spent


def test_personal_invitations_admit_to_the_new_federation_too(tmp_path):
    found = hosted(tmp_path, by_invitation=True)
    found._end("failed", "a test")
    now = found.renew(None, from_model=False)
    assert [now.invitations.token(k) for k in now.slots] == [found.invitations.token(k) for k in found.slots]
    assert now.author == found.author  # links name the key
    now.stop()


def test_it_goes_on_from_its_model_where_the_method_can(tmp_path):
    site = Site({"demo": (found := hosted(tmp_path))})
    with serving(site) as port:
        finish(port, found)
        model = fetch(port, "/api/federations/demo/model.bin")[2]
        assert operate(port, "POST", AGAIN, body={"rounds": 1, "from_model": True}) == 200
        assert fetch(port, "/api/federations/demo/model.bin")[2] == model
        now = site.federations["demo"]

        async def first_plan():
            async with visit(port, now, "a") as visitor:
                plan = await visitor.plan()
                await visitor.report(plan)
                await visitor.until("ended")
                return plan

        assert asyncio.run(first_plan()).arrays["parameters"].tobytes() == model
    after = hosted(tmp_path)  # a restart with the same recipe knows of the change
    assert (after.state, after.recipe.rounds.count, after.federation) == ("finished", 1, now.federation)
    after.stop()


def test_a_method_that_starts_from_nothing_does_not_go_on(tmp_path):
    recipe = Recipe.load("proven-digits-pages")
    found = HostedFederation(recipe, tmp_path / "served", HostingRules(shared_link=True))
    found._end("failed", "a test")
    with pytest.raises(InvalidInput):
        found.renew(None, from_model=True)  # there is no model
    found.run_folder.mkdir()
    (found.run_folder / renewal.MODEL).write_bytes(b"")
    with pytest.raises(InvalidInput):
        found.renew(None, from_model=True)
    assert not (found.folder / "past").exists()
    now = found.renew(None, from_model=False)
    assert (now.state, now.federation != found.federation) == ("waiting", True)
    now.stop()


@pytest.mark.parametrize("body", [{"rounds": 0}, {"rounds": 1001}, {"rounds": "3"}, {"rounds": True}, {"more": 1}, []])
def test_what_cannot_be_meant_is_refused_and_changes_nothing(tmp_path, body):
    site = Site({"demo": (found := hosted(tmp_path))})
    with serving(site) as port:
        assert operate(port, "POST", AGAIN, body=body) == 400
        assert operate(port, "POST", "/api/federations/another/again") == 404
        assert site.federations["demo"] is found


@pytest.mark.parametrize("live_for_all", [False, True])
def test_nobody_else_begins_anew(tmp_path, live_for_all):
    found = over(tmp_path)
    site = Site({"demo": (found := hosted(tmp_path))}, origins=frozenset({"https://page.example"}))
    site.live_for_all = live_for_all
    with serving(site) as port:
        for headers in strangers(port):
            assert operate(port, "POST", AGAIN, headers) == 403, headers
        assert site.federations["demo"] is found
        assert operate(port, "POST", AGAIN, {"Origin": f"http://127.0.0.1:{port}"}) == 200


def test_who_watches_hears_of_the_new_federation_first(tmp_path):
    over(tmp_path)
    site = Site({"demo": (found := hosted(tmp_path))})
    with (
        serving(site) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/federations/demo/events?after=2", timeout=20) as stream,
    ):

        def summary():
            while not (line := stream.readline()).startswith(b"data: {") or b'"federation"' not in line:
                assert b"event: round" not in line
            return json.loads(line[6:])["federation"]

        assert summary() == found.federation
        assert operate(port, "POST", AGAIN) == 200
        while (heard := summary()) == found.federation:
            pass
        assert heard == site.federations["demo"].federation


def test_a_connection_to_the_one_before_ends_and_writes_nothing_into_the_new(tmp_path):
    site = Site({"demo": (found := hosted(tmp_path, {"rounds.quorum": 2}))})

    async def go(port):
        async with visit(port, found, "a") as a:
            await a.until("welcome")
            found._state, found._why = "failed", "a test"  # the operator is quicker than the next beat
            assert await asyncio.to_thread(operate, port, "POST", AGAIN) == 200
            await a.until("ended")
            found.places.leave(found.places.members[0])
            await asyncio.to_thread(found.places.settle)
        async with visit(port, site.federations["demo"], "a") as a:
            return await a.until("welcome")

    with serving(site) as port:
        welcome = asyncio.run(go(port))
        assert (welcome["federation"], welcome["known"]) == (site.federations["demo"].federation, False)
    lines = (tmp_path / "demo" / "participants.jsonl").read_text().splitlines()
    assert [json.loads(line)["what"] for line in lines] == ["joined"]


def test_two_operators_at_once_begin_one_federation(tmp_path):
    over(tmp_path)
    site = Site({"demo": hosted(tmp_path)})

    async def both(port):
        return await asyncio.gather(*(asyncio.to_thread(operate, port, "POST", AGAIN) for _ in range(2)))

    with serving(site) as port:
        assert sorted(asyncio.run(both(port))) == [200, 409]
    assert len(list((tmp_path / "demo" / "past").iterdir())) == 1


# --- killed in between


class Killed(BaseException):
    pass


STEPS = 12  #: four writes of two steps each, a folder, two moves and a removal


def mortal(monkeypatch, lives):
    """Let the next `lives` changes of files happen, and no more."""
    left = [lives]

    def dying(change):
        def change_or_die(*given, **options):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return change(*given, **options)

        return change_or_die

    monkeypatch.setattr(renewal, "write_whole", dying(renewal.write_whole))
    monkeypatch.setattr(renewal, "make_folder", dying(renewal.make_folder))
    for name in ("replace", "unlink"):
        monkeypatch.setattr(renewal.Path, name, dying(getattr(renewal.Path, name)))


@pytest.mark.parametrize("lives", range(STEPS + 1))
def test_wherever_it_is_killed_nothing_is_lost_and_it_begins_anew_once(tmp_path, monkeypatch, lives):
    found = over(tmp_path)
    model = (found.run_folder / renewal.MODEL).read_bytes()
    people = (found.folder / "participants.jsonl").read_bytes()
    found = hosted(tmp_path)
    with monkeypatch.context() as patch:
        mortal(patch, lives)
        try:
            found.renew(5, from_model=True)
            ended = True
        except Killed:
            ended = False
    with pytest.raises(InUse):
        hosted(tmp_path)
    found.stop()
    after = hosted(tmp_path)
    after.stop()
    past = found.folder / "past" / found.federation
    if lives < 2:  # the first write was not whole: it had not begun
        assert (after.state, after.federation) == ("finished", found.federation)
        assert (after.run_folder / renewal.MODEL).read_bytes() == model
        return
    assert ended == (lives >= STEPS)
    assert (after.state, after.last_round, after.recipe.rounds.count) == ("waiting", 0, 5)
    assert after.federation != found.federation
    assert (past / "run" / renewal.MODEL).read_bytes() == model
    assert (past / "participants.jsonl").read_bytes() == people
    assert not after.places.members
    start = load_file(past / "run" / renewal.MODEL)
    assert np.array_equal(after.model()[1], np.concatenate([start[n].reshape(-1) for n in after.parts.layout.names]))


def test_a_renewal_that_broke_off_can_be_asked_for_again(tmp_path, monkeypatch):
    over(tmp_path)
    found = hosted(tmp_path)
    with monkeypatch.context() as patch:
        mortal(patch, 4)
        with pytest.raises(Killed):
            found.renew(5, from_model=True)
    now = found.renew(3, from_model=True)
    assert (now.state, now.recipe.rounds.count) == ("waiting", 3)
    assert len(list((tmp_path / "demo" / "past").iterdir())) == 1
    now.stop()


def test_a_server_that_is_killed_with_sigkill_finds_the_federation_that_began(tmp_path):
    before = over(tmp_path)
    script = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from sordino.web import renewal
        from tests.web.visitors import hosted
        found = hosted(Path({str(tmp_path)!r}))
        replace = renewal.Path.replace
        def dying(self, target):
            if self.name == "participants.jsonl":
                os.kill(os.getpid(), signal.SIGKILL)
            return replace(self, target)
        renewal.Path.replace = dying
        found.renew(None, from_model=False)
        """
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    after = hosted(tmp_path)
    after.stop()
    assert (after.state, after.federation != before.federation) == ("waiting", True)
    assert (tmp_path / "demo" / "past" / before.federation / "run" / renewal.MODEL).is_file()
    assert (tmp_path / "demo" / "past" / before.federation / "participants.jsonl").is_file()
