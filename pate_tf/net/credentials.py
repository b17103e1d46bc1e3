"""Rosters (lists of a run's participants), certificates for mutual TLS, and call limits."""

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
    """The public terms of a run and the list of its participants, read from a file.

    Subclasses add further terms.

    Attributes:
        run: name of the run.
        names: names of the participants of the run, as in their certificates.
        role: role of the participants, such as "silo". For this role, the file has one table
            `[[silo]]` per participant, with the participant's name.

    Raises ValueError if a name is not valid in a certificate, if a name appears twice, or if there
    are no names.
    """

    role: ClassVar[str]
    run: str
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        for name in self.names:
            check_name(name, self.role)
        if not self.names or len(set(self.names)) < len(self.names):
            fault = "is missing"
            if self.names:
                fault = f"{max(self.names, key=self.names.count)} appears twice"
            raise ValueError(f"[[{self.role}]] {fault}; list each name once")

    @property
    def run_id(self) -> bytes:
        """Digest of all terms, 16 bytes; client and server compare it to detect differences."""
        terms = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(terms.encode()).digest()[:RUN_BYTES]

    def number(self, name: str) -> int:
        """Returns the index of a name on the roster; raises ValueError for an unknown name."""
        if name not in self.names:
            raise ValueError(f"this {self.role} is not on the roster")
        return self.names.index(name)

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        """Reads a roster from a TOML file.

        Raises:
            ValueError: if the file is not a valid roster.
            OSError: if the file can't be read.
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
        """Returns the roster that the fields of a file describe."""


COORDINATOR = "coordinator"  # common name in the coordinator's certificate
OVER = "Over"  # name of a method that every server has; it returns whether the run is over
GIVE_UP_SECONDS = 3600.0  # a process gives up after this time without a connection
CALL_SECONDS = 60.0  # timeout of a call, added to the time for which the server may wait


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """The certificate files of a client or a server, in PEM format.

    Attributes:
        name: name of the client or server, which is the common name in its certificate.
        authority: file with the certificates of the trusted authorities. No other authority is
            trusted.
        certificate: file with the certificate of this client or server, optionally followed by
            intermediate certificates.
        key: file with the private key of the certificate. Other users must not be able to read it.
    """

    name: str
    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path

    @classmethod
    def of(cls, folder: pathlib.Path, name: str) -> TlsFiles:
        """Returns the checked files `authority.pem`, `NAME.pem` and `NAME.key` of a folder.

        Raises ValueError or OSError, as `read` does.
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
        """Checks the files and returns their contents: authority, key and certificate.

        Raises:
            ValueError: if a file can't be used. The message has one line and names the file, the
                reason and the remedy.
            OSError: if a file can't be read.
        """
        contents = {}
        for path in (self.authority, self.certificate, self.key):
            if not path.exists():
                raise ValueError(f"certificates: {path} does not exist")
            contents[path] = path.read_bytes()
        if self.key.stat().st_mode & 0o007:
            raise ValueError(
                f"{self.key} can be read by every user of this machine. If somebody may have read "
                f"it, replace key and certificate. Then run chmod 600 {self.key}"
            )
        self._check()
        return contents[self.authority], contents[self.key], contents[self.certificate]

    def context(self, *, serves: bool = False, verifies: bool = True) -> ssl.SSLContext:
        """Loads the files into an OpenSSL context; raises ValueError if OpenSSL refuses them.

        Args:
            serves: whether the context is for a server.
            verifies: whether the other end's certificate is verified.
        """
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
            why = "is damaged, not in PEM format, or has a password"
            if "MISMATCH" in str(error.reason):
                why = f"does not belong to the certificate {self.certificate}"
            raise ValueError(f"{path} {why}. Replace it with the matching file.") from None
        return context

    def _check(self) -> None:
        """Checks the certificate with a test TLS handshake between a client and a server in memory.

        Raises ValueError if OpenSSL refuses the certificate.
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
                9: "Check the clock of this machine.",  # the certificate is not valid yet
                10: "Have the authority renew it.",
            }.get(error.verify_code, f"Have the authority in {self.authority} sign a new one.")
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
    """Limits of a server.

    Attributes:
        message_bytes: maximum size of a message to or from the server, in bytes.
        calls_at_once: maximum number of concurrent calls of one caller, so that no caller can
            occupy all threads of the server.
        longest_wait: maximum time in seconds for which a call may wait for a task.
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
    days: tuple[float, float] = (-0.05, 30.0),  # starts early, because clocks differ
) -> tuple[Any, Any]:
    """Issues a certificate for demonstrations and tests.

    Writes `FILE.pem`, and `FILE.key` unless the certificate is for an authority.

    Args:
        folder: folder of the files.
        file: name of the files, without the suffix.
        issuer: the value that `issue` returned for the authority that signs; None if the new
            certificate is for an authority itself.
        name: common name of the certificate. Default: `file`.
        serves: whether the certificate is for servers; otherwise it is only valid for clients.
        days: start and end of validity, in days from now.

    Returns:
        The certificate and its private key. Pass both as `issuer` to sign other certificates.
    """
    # Imported here so that reading a roster does not require the package cryptography.
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
    """Writes certificates for an authority, the coordinator and each name, valid for 30 days.

    Only the coordinator's certificate is valid for servers, so no silo can pose as the coordinator.

    Args:
        folder: folder for `authority.pem`, and `NAME.pem` and `NAME.key` of each name.
        names: names of silos and aggregators, all different.

    Returns:
        The certificate files of each name and of the coordinator.

    Raises ValueError if a name is not valid, is reserved, or appears twice.
    """
    holders = [COORDINATOR, *(check_name(name, "name") for name in names)]
    if len(set(holders)) < len(holders) or "authority" in holders:
        raise ValueError(f"names must be unique, and must not be authority or {COORDINATOR}")
    authority = issue(folder, "authority", name="pate_tf demo authority")
    for name in holders:
        issue(folder, name, authority, serves=name == COORDINATOR)
    return {name: TlsFiles.of(folder, name) for name in holders}
