"""A certificate authority for trying things out on one machine. Not for real organizations.

Its key is thrown away once it has signed a certificate for every name.
"""

import datetime
import pathlib
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pate_tf.core import artifacts
from pate_tf.core.validation import check_name
from pate_tf.net.credentials import COORDINATOR, TlsFiles

# Of `x509.KeyUsage`, which has no defaults.
UNUSED = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")


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
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pate_tf demo authority")])
    authority_key = ec.generate_private_key(ec.SECP256R1())

    def builder(
        subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool
    ) -> x509.CertificateBuilder:
        usage = x509.KeyUsage(
            digital_signature=not is_authority,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            encipher_only=False,
            decipher_only=False,
            **dict.fromkeys(UNUSED, False),
        )
        return (
            x509.CertificateBuilder(issuer, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), True)
            .add_extension(usage, True)
        )

    def write(path: pathlib.Path, unsigned: x509.CertificateBuilder) -> None:
        signed = unsigned.sign(authority_key, hashes.SHA256())
        artifacts.write_text(path, signed.public_bytes(serialization.Encoding.PEM).decode())

    write(folder / "authority.pem", builder(issuer, authority_key, is_authority=True))
    files = {name: TlsFiles.of(folder, name, are_there=False) for name in holders}
    for name, paths in files.items():
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        artifacts.write_text(paths.key, private.decode(), private=True)
        serves = name == COORDINATOR
        use = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        write(
            paths.certificate,
            builder(subject, key, is_authority=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
            .add_extension(x509.ExtendedKeyUsage([use]), False),
        )
    return files
