"""Certificates of mutual TLS, who a caller is by its own, and limits of calls."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import datetime
import hashlib
import json
import pathlib
import ssl
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from pate_tf.core import artifacts
from pate_tf.core.checks import check_name
from pate_tf.core.toml_files import Fields

RUN_BYTES = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roster(abc.ABC):
    """The public terms of a run. A subclass adds its own, and takes them from the file's fields.

    Attributes:
        run: name of the run.
        names: of those who take part, as in their certificates.
        role: what they are called in the file: `[[role]]` with a name each.

    Raises ValueError if a name can't stand in a certificate, or there is one twice or none.
    """

    role: ClassVar[str]
    run: str
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        for name in self.names:
            check_name(name, self.role)
        if not self.names or len(set(self.names)) < len(self.names):
            got = f"{max(self.names, key=self.names.count)} twice" if self.names else "none"
            raise ValueError(f"{self.role}: expected one or more of different names, got {got}")

    @property
    def run_id(self) -> bytes:
        """16 bytes that name the run: two ends that read other terms refuse each other."""
        terms = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(terms.encode()).digest()[:RUN_BYTES]

    def number(self, name: str) -> int:
        """Returns the place of a name on the roster, from 0; raises ValueError without one."""
        if name not in self.names:
            raise ValueError(f"{self.role}: expected one on the roster, got another")
        return self.names.index(name)

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        """Reads a roster.

        Raises:
            ValueError: if the file holds none; one line that says what was expected.
            OSError: if it can't be read.
        """
        fields = Fields.read(path)
        try:
            roster = cls.of_fields(fields)
            fields.end()
        except ValueError as error:
            text = str(error)
            raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from None
        return roster

    @classmethod
    @abc.abstractmethod
    def of_fields(cls, fields: Fields) -> Self:
        """Takes the roster from the fields of its file."""


COORDINATOR = "coordinator"  # name in its certificate
OVER = "Over"  # the method of every server that says whether its run is over
GIVE_UP_SECONDS = 3600.0  # without a connection, after which a process gives up
CALL_SECONDS = 60.0  # that a call may take, beside what it waits at the server


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """The files of one end of a connection, in PEM.

    Attributes:
        name: of this end, the common name of its certificate.
        authority: certificates of the authorities that sign all others; alone trusted.
        certificate: of this end; those of authorities between it and `authority` may follow.
        key: private key of the certificate, which other users can't read.
    """

    name: str
    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path

    @classmethod
    def of(cls, folder: pathlib.Path, name: str) -> TlsFiles:
        """Returns the files of a name as `certificates.write_demo_certificates` lays them out.

        Raises ValueError or OSError as `read`.
        """
        check_name(name, "name")
        files = cls(
            name=name,
            authority=folder / "authority.pem",
            certificate=folder / f"{name}.pem",
            key=folder / f"{name}.key",
        )
        files.read()
        return files

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Returns the contents of authority, key and certificate, once they were checked.

        Raises:
            ValueError: in one line, which file can't be used now, why, and what to do.
            OSError: if a file can't be read.
        """
        contents = {}
        for path in (self.authority, self.certificate, self.key):
            if not path.exists():
                raise ValueError(f"certificates: expected {path}, got no such file")
            contents[path] = path.read_bytes()
        if self.key.stat().st_mode & 0o007:
            raise ValueError(
                f"{self.key} is open to every user of this machine. Replace key and certificate if "
                f"somebody else may have read it; then: chmod 600 {self.key}"
            )
        self._check()
        return contents[self.authority], contents[self.key], contents[self.certificate]

    def context(self, *, serves: bool = False, verifies: bool = True) -> ssl.SSLContext:
        """Returns the files as OpenSSL takes them; ValueError where it does not."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = verifies and not serves
        context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
        path = self.authority
        try:
            context.load_verify_locations(path)
            path = self.certificate
            ssl.SSLContext(context.protocol).load_verify_locations(path)
            path = self.key
            context.load_cert_chain(self.certificate, path, password="")
        except ssl.SSLError as error:
            why = "is damaged, not in PEM, or has a password"
            if "MISMATCH" in str(error.reason):
                why = f"is the key of another certificate than {self.certificate}"
            raise ValueError(f"{path} {why}. Put the files there that belong together.") from None
        return context

    def _check(self) -> None:
        """Has OpenSSL verify the certificate in a handshake of this end with itself.

        Raises ValueError if it refuses.
        """
        serves = self.name == COORDINATOR
        to_server = ssl.MemoryBIO()
        to_client = ssl.MemoryBIO()
        client = self.context(verifies=serves)
        server = self.context(serves=True, verifies=not serves)
        dialing = client.wrap_bio(to_client, to_server, server_hostname=COORDINATOR)
        dialed = server.wrap_bio(to_server, to_client, server_side=True)
        verifying = dialing if serves else dialed
        try:
            for end in (dialing, dialed) * 3:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        except ssl.SSLCertVerificationError as error:
            what_to_do = {
                9: "Check the clock of this machine.",  # not valid yet
                10: "Have the authority renew it.",
            }.get(error.verify_code, f"Have the authority in {self.authority} sign another one.")
            path = self.certificate
            for each in verifying.context.get_ca_certs():
                ends = [ssl.cert_time_to_seconds(str(each[n])) for n in ("notBefore", "notAfter")]
                if not ends[0] <= time.time() <= ends[1]:
                    path = self.authority
            raise ValueError(f"{path}: {error.verify_message.rstrip('.')}. {what_to_do}") from None
        subject: Any = (verifying.getpeercert() or {})["subject"]
        names = [value for field in subject for kind, value in field if kind == "commonName"]
        if names != [self.name]:
            raise ValueError(f"{self.certificate} is for {', '.join(names)}, not {self.name}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server allows and how it waits.

    Attributes:
        message_bytes: of one message to the server or from it.
        calls_at_once: of one caller, side by side: none can keep all threads of the server.
        longest_wait: how long a poll may wait for something to do, in seconds.
    """

    message_bytes: int = 64 * 2**20
    calls_at_once: int = 8
    longest_wait: float = 30.0


def issue(
    folder: pathlib.Path,
    file: str,
    issuer: Any = None,
    *,
    name: str | None = None,
    serves: bool = False,
    days: tuple[float, float] = (-0.05, 30.0),  # clocks differ
) -> tuple[Any, Any]:
    """Writes `FILE.pem`, and `FILE.key` unless it is an authority's, for demonstrations and tests.

    Args:
        folder: where they go.
        file: their names.
        issuer: what `issue` returned for the authority. Default: the certificate is an authority's.
        name: its common name. Default: `file`.
        serves: whether it may be used to serve, and for nothing else, or to dial.
        days: from now, when it begins to hold and ends.

    Returns:
        Certificate and private key, for what they sign.
    """
    # In an extra, which rosters do without.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    first, last = (now + datetime.timedelta(days=day) for day in days)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name or file)])
    key = ec.generate_private_key(ec.SECP256R1())
    above, signing = (subject, key) if issuer is None else (issuer[0].subject, issuer[1])
    serial = x509.random_serial_number()
    builder = x509.CertificateBuilder(above, subject, key.public_key(), serial, first, last)
    builder = builder.add_extension(x509.BasicConstraints(issuer is None, None), True)
    if issuer is not None:
        use = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
        other_names = x509.SubjectAlternativeName([x509.DNSName(name or file)])
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
        builder = builder.add_extension(other_names, False)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        artifacts.write_text(folder / f"{file}.key", private.decode(), private=True)
    certificate = builder.sign(signing, hashes.SHA256())
    public = certificate.public_bytes(serialization.Encoding.PEM)
    artifacts.write_text(folder / f"{file}.pem", public.decode())
    return certificate, key


def write_demo_certificates(folder: pathlib.Path, names: Sequence[str]) -> dict[str, TlsFiles]:
    """Makes an authority and a certificate for each name and the coordinator, for 30 days.

    Only the coordinator's certificate may be used to serve, so no silo can pose as one.

    Args:
        folder: where they go: `authority.pem`, and `NAME.pem` and `NAME.key` for each.
        names: of silos and parties, all different.

    Returns:
        The files of each name, the coordinator's too.

    Raises ValueError if a name is none or stands there twice.
    """
    holders = [COORDINATOR, *(check_name(name, "name") for name in names)]
    if len(set(holders)) < len(holders) or "authority" in holders:
        raise ValueError("names: expected different ones, none of them authority, got others")
    authority = issue(folder, "authority", name="pate_tf demo authority")
    for name in holders:
        issue(folder, name, authority, serves=name == COORDINATOR)
    return {name: TlsFiles.of(folder, name) for name in holders}
