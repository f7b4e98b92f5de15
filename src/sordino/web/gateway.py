"""A gateway: a server for pages that is itself one client of a larger federation, behind Flower or a socket.

It hosts the page and its participants as `sordino serve` does, but the coordinator is elsewhere: a relay hands the plan
in at a Unix socket (the one that `sordino client serve` would listen at), and takes the answers of all participants out
as one bundle. The gateway adds nothing, draws nothing and decides nothing; it sees what any server of pages sees.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sordino.client.invitation import Invitation, NotSigned
from sordino.client.refusal import Reason, Refused
from sordino.client.socket_service import Listener
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.gateways import STEP, Bundle, Gather
from sordino.fleets.web import Stopped
from sordino.recipe import Recipe
from sordino.storage.files import NotWritten, reading, write_whole
from sordino.web.hosted_federation import GatewayShare, HostedFederation, HostingRules, State
from sordino.wire.messages import Plan
from sordino.wire.requests import Closed, Request, Response, What
from sordino.wire.signing import Envelope


class GatewayFederation(HostedFederation):
    """A federation with its coordinator elsewhere."""

    def __init__(self, recipe: Recipe, folder: Path, share: GatewayShare, rules: HostingRules | None = None) -> None:
        first, stop, most = share.slots.start, share.slots.stop, recipe.number_of_clients
        if not first < stop <= most:
            raise InvalidInput(f"slots {first}-{stop - 1} are not within the recipe's 0-{most - 1}")
        super().__init__(recipe, folder, rules, share)
        self._invitation_file = folder / "coordinator.invitation"
        self._newest_invitation: Invitation | None = None  # the newest that the coordinator signed, for all slots
        self._remember_invitation()
        self.fleet.quorum, self.fleet.enough = 1, 0  # what counts is decided elsewhere
        self._bundle_file = _BundleFile(folder / "gathered")
        self._round = self._bundle_file.last()
        self._change(self._after(self._round))

    def start(self) -> None:
        """Nothing: the rounds begin elsewhere."""

    def begin(self) -> None:
        """Refused: the rounds begin elsewhere."""
        raise InvalidInput("this is a gateway: its coordinator, elsewhere, begins the rounds")

    def renew(self, rounds: int | None, *, from_model: bool) -> HostedFederation:
        """Refused: the federation begins elsewhere."""
        raise InvalidInput("this is a gateway: its coordinator, elsewhere, begins the federation")

    @property
    def last_round(self) -> int:
        """The last round with answers that were handed on."""
        return self._round

    def gather(self, asked: Gather) -> Bundle:
        """The answers of participants to a plan, as many as come in time; the same again when it is asked again."""
        plan = self._signed(asked.plan)
        if plan.federation != self.federation:
            raise InvalidInput(f"a plan of {plan.federation[:100]!r} came to a gateway of {self.federation}")
        strangers = [client for client in asked.clients if client not in self.slots]
        if strangers:
            raise InvalidInput(f"client {strangers[0]} is not behind this gateway")
        bundle = self._bundle_file.find(asked) or self._collect(asked, plan)
        self._round = max(self._round, plan.round)
        self._change(self._after(plan.round))
        return bundle

    def _signed(self, message: bytes) -> Plan:
        """The plan, if its coordinator signed it: participants look for themselves, in what they are handed."""
        envelope = Envelope.decode(message)
        if not envelope.is_signed("report", self.author.key):
            raise Refused(Reason.NOT_SIGNED, "a plan came to this gateway which its coordinator did not sign")
        if envelope.terms != self.terms.digest:
            raise Refused(Reason.OTHER_TERMS, "a plan came to this gateway that is signed for other terms than its own")
        return Plan.decode(envelope.message)

    def invite(self, invitation: Invitation) -> None:
        """Keep the coordinator's invitation, which native clients get from here, and follow the rotations in it."""
        author = invitation.author
        if not (author.follows(self.author) or self.author.follows(author)):
            raise Refused(Reason.NOT_SIGNED, "the invitation hands over to a key that the one before did not sign")
        if self._newest_invitation is not None and self.author.follows(author):
            return
        write_whole(self._invitation_file, replace(invitation, receipt="").encode())
        self._follow(invitation)

    def _follow(self, invitation: Invitation) -> None:
        rotated = len(invitation.author.rotations) > len(self.author.rotations)
        self._newest_invitation, self.author = invitation, invitation.author
        if rotated:
            self.fleet.reconnect("the coordinator's key was rotated")

    def _remember_invitation(self) -> None:
        """Use the invitation kept before a restart, if it is to this federation."""
        if not self._invitation_file.is_file():
            return
        with reading(self._invitation_file):
            kept = Invitation.decode(self._invitation_file.read_bytes())
        if (kept.common, kept.places) == (self.terms, (self.slots[0], self.slots[-1])):
            self._follow(kept)

    def _invitation_of(self, client: int) -> Invitation | None:
        return None if self._newest_invitation is None else replace(self._newest_invitation, client=client)

    def _after(self, round: int) -> State:
        return "finished" if round >= self.recipe.rounds.count else "waiting"

    def _collect(self, asked: Gather, plan: Plan) -> Bundle:
        """Ask the participants, and write down what came before anybody hears of it."""
        before = self._bundle_file.begin(asked)
        deadline = None if asked.seconds is None else time.monotonic() + asked.seconds
        answers: dict[int, bytes] = {}
        self._change("training")
        unreached: set[int] = set()
        with closing(self.fleet.exchange("report", dict.fromkeys(asked.clients, asked.plan), deadline)) as found:
            for reply in found:
                if not reply.reached:
                    unreached.add(reply.client)
                elif reply.message is not None and reply.answer.digest == plan.digest:
                    answers.setdefault(reply.client, reply.message)
        bundle = Bundle(answers, () if before else tuple(sorted(unreached)))
        try:
            self.receipts.settle()
            self._bundle_file.end(asked, bundle)
        except NotWritten as error:  # what was answered has left its participants: it goes on all the same
            self._say(str(error))
        return bundle


class _BundleFile:
    """The bundle of the last plan, in a file: whoever answered may be gone when the same is asked again.

    A plan is written down before anybody gets it. Where a gateway was stopped in the middle, nobody knows any more whom
    it had reached.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self, asked: Gather) -> Bundle | None:
        """The bundle gathered for this plan; None if it is not complete."""
        kept = self._kept(asked)
        return Bundle.decode(kept) if kept else None

    def last(self) -> int:
        """The round of the bundle; 0 where there is none."""
        found = re.match(rb"round (\d+)\n.{32}.", self._path.read_bytes() if self._path.exists() else b"", re.DOTALL)
        return int(found[1]) if found else 0

    def begin(self, asked: Gather) -> bool:
        """Write down that the participants are asked now. Returns whether they may have been asked before."""
        before = self._kept(asked) is not None
        if not before:
            write_whole(self._path, _key(asked))
        return before

    def end(self, asked: Gather, bundle: Bundle) -> None:
        """Write down what came."""
        write_whole(self._path, _key(asked) + bundle.encode())

    def _kept(self, asked: Gather) -> bytes | None:
        kept, key = self._path.read_bytes() if self._path.exists() else b"", _key(asked)
        return kept[len(key) :] if kept.startswith(key) else None


def _key(asked: Gather) -> bytes:
    """The key of a question: the plan and the clients, but not the deadline."""
    digest = hashlib.sha256(replace(asked, seconds=None).encode()).digest()
    return b"round %d\n" % Envelope.decode(asked.plan).round + digest


class GatewayService(Listener):
    """Answers a relay at a Unix socket for all participants of a gateway."""

    def __init__(self, hosted: GatewayFederation, path: str | Path, name: str) -> None:
        super().__init__(path)
        self._hosted, self._name = hosted, name
        self._thread = threading.Thread(target=self.serve, name="gateway", daemon=True)

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def respond(self, request: Request) -> Response:
        """The response to a request of the relay's."""
        try:
            match request.what:
                case What.HELLO:
                    return Response(True, json.dumps({"name": self._name, "id": self._id()}).encode())
                case What.JOIN:
                    return self._joining(request.payload)
                case What.STEP if request.step == STEP:
                    return Response(True, self._hosted.gather(Gather.decode(request.payload)).encode())
                case What.STEP:
                    return Response(False, reason="a gateway gathers the reports of its participants, nothing else")
                case What.RECEIPT:
                    return Response(True)
        except Stopped as error:  # a refusal would be final, and who is not answered asks again when this one is back
            raise Closed(str(error)) from None
        except SordinoError as error:
            return Response(False, reason=str(error)[:300])
        except Exception:  # a request must not end the service, and the operator must see what broke
            traceback.print_exc()
            return Response(False, reason=Reason.UNAVAILABLE.value)

    def _id(self) -> str:
        """An id that stays the same after restarts, and says no more than federation and slots."""
        hosted = self._hosted
        told = f"{hosted.federation} {hosted.slots.start} {self._name}"
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def _joining(self, message: bytes) -> Response:
        """Take part if the invitation is to what this gateway was started for, under the number of its first slot."""
        hosted = self._hosted
        try:
            offered = Invitation.decode(message)
        except NotSigned:
            return Response(False, reason=Reason.NOT_SIGNED.value)
        own, slots = hosted.terms, hosted.slots
        if offered.coordinator != own.coordinator:
            return Response(False, reason=Reason.NOT_SIGNED.value)
        if (offered.federation, *offered.places) != (own.federation, slots[0], slots[-1]):
            return Response(
                False,
                reason=f"this gateway is of {own.federation} with slots {slots[0]}-{slots[-1]}; the invitation is to "
                f"{offered.federation[:100]}, {offered.places[0]}-{offered.places[1]}",
            )
        if offered.common != own:
            return Response(False, reason=Reason.OTHER_TERMS.value)
        hosted.invite(offered)
        return Response(True)


__all__ = ["GatewayFederation", "GatewayService"]
