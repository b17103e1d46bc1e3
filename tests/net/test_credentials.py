"""Certificates: what can't be used is named at the start; what is renewed is taken up."""

import datetime
import os
import re
import shutil
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from script_processes import PATIENCE, assert_one_line, run_script

from pate_tf.net.calls import Connection, Service, TlsServer
from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.silos import Member, SiloRoster
from pate_tf.silos.protocol import Keys

MAIN = "pate_tf/cli/main.py"
NAME = "aggregator-1"
PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


def issue(
    folder, file, issuer=None, *, name=None, days=(-1, 30), use=None, dns=None, password=None
):
    """Writes a certificate and its key; returns both, for what they sign."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name or file)])
    above, signing = (subject, key) if issuer is None else (issuer[0].subject, issuer[1])
    first, last = (now + datetime.timedelta(days=day) for day in days)
    builder = x509.CertificateBuilder(
        above, subject, key.public_key(), x509.random_serial_number(), first, last
    ).add_extension(x509.BasicConstraints(issuer is None, None), True)
    if issuer is not None:
        use = use or (SERVER if file == COORDINATOR else CLIENT)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
        others = [x509.DNSName(dns or file)]
        builder = builder.add_extension(x509.SubjectAlternativeName(others), False)
    certificate = builder.sign(signing, hashes.SHA256())
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{file}.pem").write_bytes(certificate.public_bytes(PEM))
    kept = serialization.NoEncryption()
    if password is not None:
        kept = serialization.BestAvailableEncryption(password)
    (folder / f"{file}.key").write_bytes(key.private_bytes(PEM, PKCS8, kept))
    (folder / f"{file}.key").chmod(0o600)
    return certificate, key


def other_authority(folder, authority):
    issue(folder, NAME, issue(folder / "other", "authority"))


def key_of_another(folder, authority):
    os.replace(folder / f"{COORDINATOR}.key", folder / f"{NAME}.key")


def open_key(folder, authority):
    (folder / f"{NAME}.key").chmod(0o644)


def reissued(file=NAME, **changes):
    return lambda folder, authority: issue(folder, file, authority, **changes)


def junk(file):
    return lambda folder, authority: (folder / file).write_text("-----BEGIN JUNK-----\n")


def old_authority(*days):
    return lambda folder, authority: issue(folder, "authority", days=days)


def no_authority(folder, authority):
    shutil.copy(folder / f"{NAME}.pem", folder / "authority.pem")


BAD = {
    "expired": (reissued(days=(-9, -1)), rf"{NAME}.pem: .* expired. Have .* renew it"),
    "not yet valid": (reissued(days=(1, 9)), rf"{NAME}.pem: .* not yet valid. Check the clock"),
    "another authority's": (
        other_authority,
        rf"{NAME}.pem: .* Have the authority in .*authority.pem",
    ),
    "another name": (reissued(name="clinic"), rf"{NAME}.pem has the common name clinic, not"),
    "of a server": (reissued(use=SERVER), rf"{NAME}.pem: un.* certificate purpose. Have"),
    "junk": (junk(f"{NAME}.pem"), rf"{NAME}.pem is damaged, not in PEM"),
    "authority of junk": (junk("authority.pem"), r"authority.pem is damaged, not in PEM"),
    "expired authority": (old_authority(-9, -1), r"authority.pem: .* expired"),
    "authority of tomorrow": (old_authority(1, 9), r"authority.pem: .* not yet valid"),
    "no authority": (no_authority, rf"{NAME}.pem: .* Have the authority in .*authority.pem"),
    "key of junk": (junk(f"{NAME}.key"), rf"{NAME}.key is damaged, not in PEM"),
    "key with a password": (reissued(password=b"x"), rf"{NAME}.key .* or has a password"),
    "key of another": (key_of_another, rf"{NAME}.key is the key of another certificate than"),
    "open key": (open_key, rf"{NAME}.key is open to every user .* chmod 600"),
    "server of a client": (
        reissued(COORDINATOR, use=CLIENT),
        r"coordinator.pem: un.* certificate purpose",
    ),
    "server of another": (
        reissued(COORDINATOR, dns="x"),
        r"coordinator.pem: .* valid for 'coordinator'. Have",
    ),
}


@pytest.mark.parametrize("make_bad, expected", BAD.values(), ids=BAD)
def test_what_can_not_be_used_is_one_line_at_the_start(tmp_path, make_bad, expected):
    tls = tmp_path / "tls"
    authority = issue(tls, "authority")
    for name in (NAME, COORDINATOR):
        issue(tls, name, authority)
        TlsFiles.of(tls, name)
    make_bad(tls, authority)
    keys = Keys.load_or_create(tmp_path / "own" / "keys.json", NAME)
    members = (Member(name="clinic"),)
    roster = SiloRoster(run="r", delta=1e-6, members=members, aggregators=(keys.identity,))
    roster.write(tmp_path / "roster.toml")
    flags = ("aggregator", "--aggregator_dir=own", "--coordinator=localhost:1")
    if COORDINATOR in expected:
        text = 'run = "x"\ndataset = "digits"\n[[participant]]\nname = "clinic"\n'
        (tmp_path / "roster.toml").write_text(text)
        flags = ("dssgd", "serve")
    ended = run_script(MAIN, *flags, "--roster=roster.toml", "--certificates=tls", folder=tmp_path)
    assert_one_line(ended)
    assert re.search(expected, ended.err), ended.err


def echo(request, caller):
    return (request, caller.name)


SERVICE = Service(name="echo.v1.Echo", callers=[NAME], methods={"Echo": (int, echo)})


def test_renewed_files_are_taken_up_and_refusals_named(tmp_path, caplog, monkeypatch):
    """First the server has another authority; then both, then the caller's certificate expires."""
    monkeypatch.setattr("pate_tf.net.calls.HANDSHAKE_SECONDS", 0.2)
    ends = {COORDINATOR: tmp_path / "server", NAME: tmp_path / "caller"}
    for name, folder in ends.items():
        issue(folder, name, issue(folder, "authority"))
    files = {name: TlsFiles.of(folder, name) for name, folder in ends.items()}
    with TlsServer("localhost:0", files=files[COORDINATOR], services=[SERVICE]) as server:
        address = f"localhost:{server.port}"
        with Connection(address, service=SERVICE.name, files=files[NAME]) as connection:

            def call():
                return connection.call("Echo", 7, tuple[int, str])

            with pytest.raises(ConnectionError, match=r"refuses the certificate of the coord"):
                call()
            authority = issue(tmp_path / "new", "authority")
            for name, folder in ends.items():
                shutil.copy(tmp_path / "new" / "authority.pem", folder)
                issue(folder, name, authority)
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    assert call() == (7, NAME)
                    break
                except ConnectionError:
                    assert time.monotonic() < end
            issue(ends[NAME], NAME, authority, days=(-9, -1))
            monkeypatch.setattr(TlsFiles, "read", read_without_a_check)
            with pytest.raises(ConnectionError, match=rf"coordinator refuses .*{NAME}.pem"):
                call()
            monkeypatch.undo()
            with pytest.raises(ConnectionError, match=rf"{NAME}.pem: certificate has expired"):
                call()
            end = time.monotonic() + PATIENCE
            while "refused a certificate" not in caplog.text:
                with pytest.raises(ConnectionError):
                    call()
                assert time.monotonic() < end


def read_without_a_check(files):
    return tuple(path.read_bytes() for path in (files.authority, files.key, files.certificate))
