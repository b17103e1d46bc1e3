"""Certificates of mutual TLS, who a caller is by its own, and limits of calls."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import pathlib
from typing import TYPE_CHECKING, ClassVar, Self

from pate_tf.core.validation import Fields, check_name

if TYPE_CHECKING:
    import grpc

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
STATUS = "Status"  # the one that says so to who looks on, and when each caller called last
CALL_SECONDS = 60.0  # that a call may take, beside what it waits at the server


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """The files of one end of a connection, in PEM.

    Attributes:
        authority: certificate of the authority that signed all others; alone trusted.
        certificate: of this end; its common name says who that is.
        key: private key of the certificate, which its owner alone can read.
    """

    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path

    @classmethod
    def of(cls, folder: pathlib.Path, name: str, *, are_there: bool = True) -> TlsFiles:
        """Returns the files of a name as `certificates.write_demo_certificates` lays them out.

        Raises ValueError if one is missing, unless it need not be there.
        """
        check_name(name, "name")
        files = cls(
            authority=folder / "authority.pem",
            certificate=folder / f"{name}.pem",
            key=folder / f"{name}.key",
        )
        for path in (files.authority, files.certificate, files.key):
            if are_there and not path.exists():
                raise ValueError(f"certificates: expected {path}, got no such file")
        return files


def caller_name(context: grpc.ServicerContext) -> str:
    """Returns the common name of a caller's certificate.

    Raises PermissionError if there is no certificate, or it has not exactly one such name.
    """
    names = context.auth_context().get("x509_common_name", [])
    if len(names) != 1:
        raise PermissionError("expected a certificate with one common name, got none such")
    return bytes(names[0]).decode("utf-8", "replace")


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
