"""One link for everybody: who it admits, what holds beside it, who may read it, and how it is revoked."""

import asyncio
import io
import json
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sordino.cli import app
from sordino.cli.serve import _announce, _show_code
from sordino.recipe import Recipe
from sordino.web.app import Site
from sordino.web.hosted_federation import HostedFederation, HostingRules
from sordino.web.limits import Limits
from sordino.web.native_participant import Link
from sordino.web.places import Invitations, Places, SharedLink, TurnedAway
from sordino.wire.tls_address import TlsAddress
from tests.web.test_place_holders import PROOF, A, B, C, Clock
from tests.web.visitors import get, hosted, operate, server, serving, strangers, visit

THREE = {"rounds.quorum": 3}


def opened(folder: Path, clock: Clock | None = None, **limits):
    link = SharedLink(folder, "demo")
    places = Places(folder / "people", range(2), link=link, limits=Limits(**limits))
    if clock is not None:
        places._clock = clock
    return link, places


def code(places, who, token, network="here"):
    try:
        places.admit(who, PROOF, "page", token, network)
    except TurnedAway as turned:
        return turned.code
    return "admitted"


def test_one_token_admits_everybody_who_has_it_to_any_free_place(tmp_path):
    link, places = opened(tmp_path)
    personal = Invitations.kept(tmp_path, "demo").token(0)
    for wrong in ("", "link-", personal, link.token[:-1], link.token + "a", link.token.replace("link", "0")):
        assert code(places, A, wrong) == "token"
        assert not places.recognises(A, PROOF, wrong)
    assert places.recognises(A, PROOF, link.token)
    assert (code(places, A, link.token), code(places, B, link.token)) == ("admitted", "admitted")
    assert code(places, C, link.token) == "full"
    assert code(places, A, "") == "admitted"  # a holder comes back without it


def test_the_rules_of_open_federations_hold_beside_the_link(tmp_path):
    clock = Clock()
    link, places = opened(tmp_path, clock, places=1, absence=600.0)
    assert code(places, A, link.token) == "admitted"
    assert code(places, B, link.token) == "address"
    assert code(places, B, link.token, "elsewhere") == "admitted"
    member = places.find(A)
    places.come(member)
    places.go(member)
    clock.now += 601.0
    assert code(places, C, "", "far") == "token"
    assert code(places, C, link.token, "far") == "admitted"  # who is away longest gives place
    assert places.find(A) is None


def test_the_token_cannot_be_guessed_and_is_the_same_after_a_restart(tmp_path):
    link = SharedLink(tmp_path, "demo")
    assert len(link.token) - len("link-") == 24  # 120 bits in base 32
    assert SharedLink(tmp_path, "demo").token == link.token
    assert SharedLink(tmp_path, "other").token != link.token
    (tmp_path / "another").mkdir()
    assert SharedLink(tmp_path / "another", "demo").token != link.token
    assert (tmp_path / "invitations.key").stat().st_mode & 0o077 == 0


def test_a_revoked_link_admits_nobody_and_holders_keep_their_places(tmp_path):
    link, places = opened(tmp_path)
    leaked = link.token
    assert code(places, A, leaked) == "admitted"
    link.revoke()
    assert code(places, B, leaked) == "token"
    assert code(places, A, leaked) == "admitted"
    assert code(places, B, link.token) == "admitted"
    assert SharedLink(tmp_path, "demo").token == link.token != leaked
    assert (tmp_path / "invitations.key").stat().st_mode & 0o077 == 0


def test_visitors_with_the_link_join_and_others_do_not(tmp_path, capfd):
    said = []
    found = hosted(tmp_path, THREE, shared_link=True, say=said.append)

    async def go(port):
        async with visit(port, found, "a", token=found.link.token) as a, visit(port, found, "b") as b:
            assert (await a.until("welcome"))["limits"]["absence"] == 600
            assert (await b.until("refused"))["code"] == "token"
            assert await asyncio.to_thread(operate, port, "DELETE", "/api/federations/demo/link") == 204
            async with visit(port, found, "c", token=token) as c:
                assert (await c.until("refused"))["code"] == "token"

    token = found.link.token
    with server(found) as port:
        told = get(port, "/api/federations/demo")
        assert (told["by_invitation"], told["shared_link"], told["absence"]) == (True, True, 600)
        assert get(port, "/api/server")["invited"]
        link = Link.parse(told["link"])
        assert (link.name, link.token, link.key) == ("demo", token, found.author.first.hex())
        asyncio.run(go(port))
        assert Link.parse(get(port, "/api/federations/demo")["link"]).token == found.link.token != token
    told = "".join(said) + "".join(capfd.readouterr())
    assert token not in told
    assert found.link.token not in told


def test_the_link_is_shown_to_the_operator_alone(tmp_path):
    found = hosted(tmp_path, THREE, shared_link=True)
    with server(found, live_for_all=True, address="https://learn.example") as port:
        assert get(port, "/api/federations/demo")["link"].startswith("https://learn.example/#")
        tunnel = {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "learn.example"}
        for headers in ({"Host": "learn.example"}, {"X-Forwarded-For": "192.0.2.7"}, tunnel):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/api/federations/demo", headers=headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read().decode()
            told = json.loads(text)
            assert (told["link"], told["may_free"]) == (None, False)
            assert told["live"] is not None
            assert found.link.token not in text
        for headers in strangers(port):
            assert operate(port, "DELETE", "/api/federations/demo/link", headers) == 403
        assert found.link.token not in json.dumps([found.summary(), found.live(), found.status])


def test_a_link_that_is_revoked_while_the_federation_begins_anew_admits_nobody(tmp_path, monkeypatch):
    site = Site({"demo": (found := hosted(tmp_path, THREE, shared_link=True))})
    leaked = found.link.token
    revoked: list[int] = []
    again = HostedFederation.renew

    def slowly(self, rounds, **options):
        now = again(self, rounds, **options)
        revoking.start()
        revoking.join(2)
        return now

    with serving(site) as port:
        address = "/api/federations/demo"
        revoking = threading.Thread(target=lambda: revoked.append(operate(port, "DELETE", f"{address}/link")))
        monkeypatch.setattr(HostedFederation, "renew", slowly)
        found._end("failed", "it broke")
        assert operate(port, "POST", f"{address}/again") == 200
        revoking.join(30)
        now = site.federations["demo"].link
        assert (revoked, now.admits(leaked)) == ([204], False)
        assert SharedLink(tmp_path / "demo", "demo").token == now.token


@pytest.mark.parametrize("invited", [False, True])
def test_without_a_shared_link_no_token_admits_everybody(tmp_path, invited):
    found = hosted(tmp_path, THREE, by_invitation=invited)
    with server(found) as port:
        told = get(port, "/api/federations/demo")
        link = None if invited else f"http://127.0.0.1:{port}/#/demo"
        assert (told["by_invitation"], told["shared_link"], told["link"]) == (invited, False, link)
        assert operate(port, "DELETE", "/api/federations/demo/link") == 404


def test_the_link_is_printed_once_and_not_beside_personal_ones(tmp_path, capsys):
    found = HostedFederation(Recipe.load("proven-digits-pages"), tmp_path / "served", HostingRules(shared_link=True))
    _announce(Site({found.name: found}, address="https://learn.example"), TlsAddress("127.0.0.1", 8000), 8000)
    found.stop()
    printed = capsys.readouterr().out
    assert printed.count(found.link.token) == 1
    assert f"https://learn.example/#federation=proven-digits-pages&token={found.link.token}&key=" in printed
    result = CliRunner().invoke(app, ["serve", "ldp-fl-digits", "--invite", "--link", "--folder", str(tmp_path / "s")])
    assert result.exit_code == 1
    assert "--link" in result.output


def test_a_terminal_shows_the_link_as_a_code(monkeypatch):

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    _show_code("https://learn.example/#federation=demo&token=link-x")
    assert len(shown.getvalue().splitlines()) > 10


def test_without_a_recipe_the_proven_one_is_served_with_a_link(tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr("sordino.web.server.serve", lambda site, place, ready: served.append(site))
    for number, options in enumerate(([], ["--invite"], ["webfed-digits"])):
        folder = ["--folder", str(tmp_path / str(number))]
        result = CliRunner().invoke(app, ["serve", *options, *folder])
        assert result.exit_code == 0, result.output
    found = [
        (hosted.name, hosted.link is not None, hosted.invitations is not None)
        for site in served
        for hosted in site.federations.values()
    ]
    assert found == [
        ("proven-digits-pages", True, False), ("proven-digits-pages", False, True), ("webfed-digits", False, False)
    ]  # fmt: skip
