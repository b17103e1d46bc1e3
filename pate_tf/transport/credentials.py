"""Certificates of mutual TLS: where they lie, and who a caller is by its own."""

import dataclasses
import pathlib

import grpc

from pate_tf.values.names import check_name

COORDINATOR = "coordinator"  # name in its certificate


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """The files of one end of a connection, in PEM.

    Attributes:
      authority: certificate of the authority that signed everybody's; alone trusted.
      certificate: of this end; its common name says who that is.
      key: private key of the certificate, which its owner alone can read.
    """

    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path

    @classmethod
    def of(cls, folder: pathlib.Path, name: str) -> "TlsFiles":
        """Returns the files of a name as `certificates.write_demo_certificates` lays them out."""
        check_name(name, "name")
        return cls(
            authority=folder / "authority.pem",
            certificate=folder / f"{name}.pem",
            key=folder / f"{name}.key",
        )

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns what a server needs to ask every caller for a certificate.

        Raises:
          OSError: if a file can't be read.
        """
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials(
            [pair], root_certificates=self.authority.read_bytes(), require_client_auth=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns what a caller needs.

        Raises:
          OSError: if a file can't be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=self.authority.read_bytes(),
            private_key=self.key.read_bytes(),
            certificate_chain=self.certificate.read_bytes(),
        )


def caller_name(context: grpc.ServicerContext) -> str:
    """Returns the common name of a caller's certificate.

    Raises:
      PermissionError: if there is no certificate, or it has not exactly one such name.
    """
    names = context.auth_context().get("x509_common_name", [])
    if len(names) != 1:
        raise PermissionError("expected a certificate with one common name, got none such")
    return bytes(names[0]).decode("utf-8", "replace")
