"""Clients, a server and a running shuffler for the tests."""

import datetime
import ipaddress
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sordino.shuffler.envelopes import Body, batch_head, envelope_bytes
from sordino.shuffler.terms import Terms
from sordino.wire.messages import Plan

PLAN = Plan("bakery", 1, {"range": 1})


def terms_of(values: int, asked=(3,), *, round: int = 1, seconds: float = 600.0, group: int = 1) -> Terms:
    return Terms.of(Plan("bakery", round), values, asked, seconds, group)


def report(bits) -> bytes:
    return np.packbits(np.asarray(bits, np.uint8), bitorder="little").tobytes()


def random_bits(clients: int, values: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (clients, values), dtype=np.uint8)


def opaque(terms: Terms, client: int, positions=None, group: int = 0) -> Body:
    """Envelopes nobody can open, as the shuffler sees them; client and position can be read off for the test."""
    where = np.arange(terms.positions, dtype=np.uint32) if positions is None else np.asarray(positions, np.uint32)
    envelopes = np.zeros((where.size, envelope_bytes(terms)), np.uint8)
    envelopes[:, 0] = client
    envelopes[:, 1:5] = where.astype("<u4").view(np.uint8).reshape(-1, 4)
    return Body(group, terms.digest, where, envelopes)


def by_position(batch: bytes, terms: Terms) -> np.ndarray:
    """`[positions, n, bytes]` of a batch."""
    start = len(batch_head(terms, 0, 1))
    return np.frombuffer(batch, np.uint8, offset=start).reshape(terms.positions, -1, envelope_bytes(terms))


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shuffler")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "cert.key").write_bytes(secret)
    return folder / "cert.pem", folder / "cert.key"


class Running:
    """`sordino shuffler serve` in a process of its own."""

    def __init__(self, folder: Path, public: Path, at_least: int, *options: str) -> None:
        command = [sys.executable, "-m", "sordino", "shuffler", "serve", "--folder", str(folder), "--port", "0"]
        command += ["--server-key", str(public), "--at-least", str(at_least), *options]
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        assert "listens on" in line, line
        self.url = line.split()[-1]
        self.token = (folder / "server.token").read_text().strip()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code
