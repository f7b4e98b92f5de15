"""The bytes of every message of a client, written down: another version of Sordino must read them."""

from dataclasses import replace

import pytest

from sordino.client.invitation import CommonTerms, Invitation
from sordino.errors import InvalidInput
from sordino.wire.receipt import RECEIPT_BYTES, Seal
from sordino.wire.requests import Request, Response, What
from tests.client.people import KEY

SIGNED = (  #: by the key 000102..: Ed25519 gives the same every time
    "619f5bd8d58807e98e713539d12ec40b1be0e7ea3bbcceb92de467517261300e"
    "eaccbcadc91c2aabd998d88b333b7970df3f552d96ae0d3f50b86fbb0374ab04"
)
INVITATION = (
    b'SI\x02\x00{"classes":["no","yes"],"client":2,"coordinator":"' + KEY.author.first.hex().encode() + b'",'
    b'"federation":"demo","mean":[0.5],"places":[2,2],"receipt":"ab12","recipe":"name = \\"x\\"\\n","rotations":[],'
    b'"shape":[1,8,8],"signature":"' + SIGNED.encode() + b'","std":[2.0]}'
)
RECEIPT = (
    "53480200"
    "1111111111111111111111111111111111111111111111111111111111111111"
    "4963f933b36fe7809f133b7194f90583132c49567b01df6f0391b21ca16e5d96"
)


def test_an_invitation():
    terms = CommonTerms("demo", 'name = "x"\n', (1, 8, 8), ("no", "yes"), (0.5,), (2.0,), KEY.author.first.hex())
    found = replace(terms.invitation(2, KEY), receipt="ab12")
    assert found.encode() == INVITATION
    assert Invitation.decode(INVITATION) == found


def test_a_receipt_of_an_earlier_version_is_understood():
    """It shows its head; a receipt shows nothing of it now."""
    seal = Seal(bytes(range(32)))
    assert seal.head("demo", bytes.fromhex(RECEIPT)) == "11" * 32
    forged = RECEIPT[:-2] + "00"
    with pytest.raises(InvalidInput):
        seal.head("demo", bytes.fromhex(forged))


def test_receipts_show_neither_the_head_nor_whether_it_changed():
    """All that two receipts have in common is their letters and version: of one head, of two, of two federations."""
    seal, heads = Seal(bytes(range(32))), ["11" * 32, "11" * 32, "22" * 32]
    made = [seal.receipt(name, head) for name in ("demo", "other") for head in heads]
    assert [seal.head("demo", receipt) for receipt in made[:3]] == heads
    assert len({receipt[4:16] for receipt in made}) == len({receipt[16:] for receipt in made}) == len(made)
    assert {(len(receipt), receipt[:4]) for receipt in made} == {(RECEIPT_BYTES, b"SH\x02\x01")}
    assert not any(bytes.fromhex(head) in receipt for receipt in made for head in heads)
    for other in (Seal(bytes(32)).head, lambda name, receipt: seal.head("third", receipt)):
        with pytest.raises(InvalidInput):
            other("demo", made[0])


def test_requests_and_responses():
    assert Request(What.STEP, "report", b"plan").encode() == b"SQ\x02\x03\x06\0\0\0reportplan"
    assert Request(What.HELLO).encode() == b"SQ\x02\x01\0\0\0\0"
    assert Response(True, b"answer", "", b"head").encode() == b"SA\x02\x01\0\0\0\0\x04\0\0\0headanswer"
    assert Response(False, b"", "no", b"").encode() == b"SA\x02\x00\x02\0\0\0no\0\0\0\0"
