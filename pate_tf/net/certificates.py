"""A certificate authority for trying things out on one machine. Not for real organisations.

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


def write_demo_certificates(
    folder: pathlib.Path,
    names: Sequence[str],
    *,
    coordinator: str = COORDINATOR,
    days: int = 30,
) -> dict[str, TlsFiles]:
    """Makes an authority and a certificate for each name and for the coordinator.

    Only the coordinator's certificate may be used to serve, so no silo can pose as one.

    Args:
        folder: where they go: `authority.pem`, and `NAME.pem` and `NAME.key` for each.
        names: of silos and parties, all different.
        coordinator: name of the coordinator.
        days: how long they are valid.

    Returns:
        The files of each name, the coordinator's too.

    Raises ValueError if a name is none or stands there twice.
    """
    owners = [coordinator, *(check_name(name, "name") for name in names)]
    if len(set(owners)) < len(owners) or "authority" in owners:
        raise ValueError("names: expected different ones, none of them authority, got others")
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("pate_tf demo authority", key.public_key(), days, key=key, issuer=None)
    artifacts.write_text(folder / "authority.pem", _pem(authority))
    found = {}
    for name in owners:
        own = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(
            name, own.public_key(), days, key=key, issuer=authority, serves=name == coordinator
        )
        files = TlsFiles.of(folder, name)
        private = own.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        artifacts.write_text(files.key, private.decode(), private=True)
        artifacts.write_text(files.certificate, _pem(signed))
        found[name] = files
    return found


def _certificate(
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    days: int,
    *,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    serves: bool = False,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    is_authority = issuer is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None),
            critical=True,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if not is_authority:
        use = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
        ).add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    return builder.sign(key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
