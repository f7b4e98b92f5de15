"""Where a server listens and with which certificate, and whom those who call it trust."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from sordino.errors import InvalidInput


@dataclass(frozen=True)
class TlsAddress:
    """Where a server listens; with a certificate and its key, over TLS. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("a certificate goes with its key: give both --tls-cert and --tls-key, or neither")
        for path in (self.certificate, self.key):
            if path is not None and not path.is_file():
                raise InvalidInput(f"{path} is no file: give the path of a certificate or key in PEM format")

    @property
    def scheme(self) -> str:
        """http or https."""
        return "http" if self.certificate is None else "https"

    @property
    def needs_tls(self) -> bool:
        """Whether other machines would speak to it in the clear."""
        return self.certificate is None and not is_loopback(self.host)

    def url(self, port: int) -> str:
        """The address to open, on this machine where it listens everywhere."""
        host = {"0.0.0.0": "localhost", "::": "localhost", "127.0.0.1": "localhost"}.get(self.host, self.host)
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def trusting(authorities: Path | None = None) -> ssl.SSLContext:
    """A caller's view: hosts that the certificates in this file vouch for and no others, or those of the system."""
    try:
        return ssl.create_default_context(cafile=None if authorities is None else str(authorities))
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"{authorities} cannot be read as a certificate ({error}): give a PEM file") from None


__all__ = ["TlsAddress", "is_loopback", "trusting"]
