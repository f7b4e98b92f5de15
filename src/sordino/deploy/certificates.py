"""TLS certificates of a test set-up: an authority of one's own, and the server's certificate that it signs.

Elliptic curves (P-256), short validity. They are for tests and first steps: between organisations the server's
certificate comes from an authority that all of them already trust.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.errors import InvalidInput

DAYS = 90  #: how long a server's certificate is valid unless said otherwise
LONGEST = 825  #: days, of the authority too; longer ones are refused by some systems
EARLIER = timedelta(hours=1)  #: before now, so that a machine whose clock is slow accepts them too
LOCAL = ("localhost", "127.0.0.1", "::1")  #: by which a server's own processes call it

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class CertificateFacts:
    """What a certificate says."""

    der: bytes  #: the certificate itself
    begins: datetime
    ends: datetime
    names: tuple[str, ...]  #: hosts that it is for

    @classmethod
    def read(cls, pem: bytes) -> CertificateFacts:
        """The facts of the first certificate in a PEM file."""
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = tuple(str(name.value) for name in alternatives if isinstance(name, x509.DNSName | x509.IPAddress))
        except x509.ExtensionNotFound:
            names = ()
        except ValueError as error:
            raise InvalidInput(f"this is no certificate in PEM ({error}): make it anew, or copy it again") from None
        der = certificate.public_bytes(serialization.Encoding.DER)
        return cls(der, certificate.not_valid_before_utc, certificate.not_valid_after_utc, names)

    def covers(self, host: str) -> bool:
        """Whether it is for this host; certificates made here have no wildcards, others may."""
        wanted, names = _address(host) or host.lower(), [name.lower() for name in self.names]
        return wanted in names or f"*.{wanted.partition('.')[2]}" in names


def checked_host(host: str) -> str:
    """A host's name or address, as others reach it; anything else is refused."""
    if _address(host) is not None:
        if ipaddress.ip_address(host).is_unspecified:
            raise InvalidInput(
                f"{host} means every address of a machine: give the name or address by which the nodes reach the server"
            )
        return str(ipaddress.ip_address(host))
    if not _NAME.fullmatch(host) or host.replace(".", "").isdigit():
        raise InvalidInput(
            f"{host[:100]!r} is neither a host's name nor an address: give it without https:// and port, such as "
            "flower.example.org or 192.0.2.7"
        )
    return host.lower()


def authority(*, now: datetime | None = None) -> CertificatePair:
    """A new authority, which vouches for servers and for no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    begins = (now or datetime.now(UTC)) - EARLIER
    draft = (
        _draft("Sordino test authority", key, begins, begins + timedelta(days=LONGEST))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    return _sign(draft.issuer_name(_name("Sordino test authority")), key, key)


def server(
    hosts: Sequence[str], by: CertificatePair, days: int = DAYS, *, now: datetime | None = None
) -> CertificatePair:
    """A server's certificate for these hosts, signed by an authority, which ends after so many days."""
    if not 1 <= days <= LONGEST:
        raise InvalidInput(f"certificates are valid for 1 to {LONGEST} days, got {days}")
    names = tuple(dict.fromkeys(map(checked_host, (*hosts, *LOCAL))))
    issuer, issuer_key = _load(by)
    begins = (now or datetime.now(UTC)) - EARLIER
    ends = min(begins + EARLIER + timedelta(days=days), issuer.not_valid_after_utc)
    if ends <= begins + EARLIER:
        raise InvalidInput("the authority's own certificate has expired: begin anew with sordino deploy init")
    key = ec.generate_private_key(ec.SECP256R1())
    draft = (
        _draft(names[0][:64], key, begins, ends)
        .issuer_name(issuer.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return _sign(draft, key, issuer_key)


def _load(pair: CertificatePair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"the authority's certificate or key cannot be read ({error}): restore them") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidInput("the authority's key does not belong to its certificate: restore both from one place")
    return certificate, key


def signed_by(certificate: bytes, issuer: bytes) -> bool:
    """Whether an authority signed a certificate."""
    try:
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(x509.load_pem_x509_certificate(issuer))
    except Exception:  # whichever of its errors it is, the answer is no
        return False
    return True


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _draft(subject: str, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _sign(
    draft: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey
) -> CertificatePair:
    certificate = draft.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    return CertificatePair(
        certificate, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )


def _usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(name: str) -> x509.GeneralName:
    address = _address(name)
    return x509.DNSName(name) if address is None else x509.IPAddress(ipaddress.ip_address(address))


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


__all__ = ["DAYS", "CertificateFacts", "CertificatePair", "authority", "checked_host", "server", "signed_by"]
