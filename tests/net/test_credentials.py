"""Certificates: unusable ones are named at the start, and renewed ones are used."""

import os
import re
import shutil
import time

import pytest
from cryptography.hazmat.primitives import serialization
from script_processes import PATIENCE, assert_one_line, run_script

from pate_tf.net.calls import Connection, Service, TlsServer
from pate_tf.net.credentials import COORDINATOR, TlsFiles, issue
from pate_tf.silos import Policy

MAIN = "pate_tf/cli/main.py"
NAME = "clinic"


def issued(folder, authority, file, **changes):
    return issue(folder, file, authority, **{"serves": file == COORDINATOR, **changes})


def other_authority(folder, authority):
    issue(folder, NAME, issue(folder / "other", "authority"))


def key_with_a_password(folder, authority):
    key = issue(folder, NAME, authority)[1]
    kept = serialization.BestAvailableEncryption(b"x")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / f"{NAME}.key").write_bytes(key.private_bytes(pem, pkcs8, kept))


def key_of_another(folder, authority):
    os.replace(folder / f"{COORDINATOR}.key", folder / f"{NAME}.key")


def open_key(folder, authority):
    (folder / f"{NAME}.key").chmod(0o644)


def reissued(file=NAME, **changes):
    return lambda folder, authority: issued(folder, authority, file, **changes)


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
    "another name": (reissued(name="school"), rf"{NAME}.pem is for school, not clinic"),
    "of a server": (reissued(serves=True), rf"{NAME}.pem: un.* certificate purpose. Have"),
    "junk": (junk(f"{NAME}.pem"), rf"{NAME}.pem is damaged, not in PEM"),
    "authority of junk": (junk("authority.pem"), r"authority.pem is damaged, not in PEM"),
    "expired authority": (old_authority(-9, -1), r"authority.pem: .* expired"),
    "authority of tomorrow": (old_authority(1, 9), r"authority.pem: .* not yet valid"),
    "no authority": (no_authority, rf"{NAME}.pem: .* Have the authority in .*authority.pem"),
    "key of junk": (junk(f"{NAME}.key"), rf"{NAME}.key is damaged, not in PEM"),
    "key with a password": (key_with_a_password, rf"{NAME}.key .* or has a password"),
    "key of another": (key_of_another, rf"{NAME}.key does not belong to the certificate"),
    "open key": (open_key, rf"{NAME}.key can be read by every user .* chmod 600"),
    "server of a client": (
        reissued(COORDINATOR, serves=False),
        r"coordinator.pem: un.* certificate purpose",
    ),
    "server of another": (
        reissued(COORDINATOR, name="x"),
        r"coordinator.pem: .* valid for 'coordinator'",
    ),
}


@pytest.mark.parametrize("make_bad, expected", BAD.values(), ids=BAD)
def test_what_can_not_be_used_is_one_line_at_the_start(tmp_path, make_bad, expected):
    tls = tmp_path / "tls"
    authority = issue(tls, "authority")
    for name in (NAME, COORDINATOR):
        issued(tls, authority, name)
        TlsFiles.of(tls, name)
    make_bad(tls, authority)
    (tmp_path / "silo").mkdir()
    Policy(silo=NAME, coordinator="localhost:1", epsilon_budget=1.0).write(
        tmp_path / "silo/policy.toml"
    )
    flags = ("silo", "serve", "--silo_dir=silo")
    if COORDINATOR in expected:
        text = 'run = "x"\ndataset = "digits"\n[[participant]]\nname = "clinic"\n'
        (tmp_path / "roster.toml").write_text(text)
        flags = ("dssgd", "serve", "--roster=roster.toml")
    ended = run_script(MAIN, *flags, "--certificates=tls", folder=tmp_path)
    assert_one_line(ended)
    assert re.search(expected, ended.err), ended.err


def echo(request, caller):
    return (request, caller.name)


SERVICE = Service(name="echo.v1.Echo", callers=[NAME], methods={"Echo": (int, echo)})


def test_renewed_files_are_taken_up_and_refusals_named(tmp_path, caplog, monkeypatch):
    """First the server has another authority, then both. Then the caller's certificate expires."""
    monkeypatch.setattr("pate_tf.net.calls.HANDSHAKE_SECONDS", 0.2)
    ends = {COORDINATOR: tmp_path / "server", NAME: tmp_path / "caller"}
    for name, folder in ends.items():
        issued(folder, issue(folder, "authority"), name)
    files = {name: TlsFiles.of(folder, name) for name, folder in ends.items()}
    with TlsServer("localhost:0", files=files[COORDINATOR], services=[SERVICE]) as server:
        address = f"localhost:{server.port}"
        with Connection(address, service=SERVICE.name, files=files[NAME]) as connection:

            def call():
                return connection.call("Echo", 7, tuple[int, str])

            with pytest.raises(ConnectionError, match=r"certificate is not valid .*authority.pem"):
                call()
            authority = issue(tmp_path / "new", "authority")
            for name, folder in ends.items():
                shutil.copy(tmp_path / "new" / "authority.pem", folder)
                issued(folder, authority, name)
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    assert call() == (7, NAME)
                    break
                except ConnectionError:
                    assert time.monotonic() < end
            issue(ends[NAME], NAME, authority, days=(-9, -1))
            monkeypatch.setattr(TlsFiles, "read", read_without_a_check)
            with pytest.raises(ConnectionError, match=rf"it refuses .*{NAME}.pem"):
                call()
            monkeypatch.undo()
            with pytest.raises(ConnectionError, match=rf"{NAME}.pem: certificate has expired"):
                call()
            end = time.monotonic() + PATIENCE
            while "a TLS handshake" not in caplog.text:
                with pytest.raises(ConnectionError):
                    call()
                assert time.monotonic() < end


def read_without_a_check(files):
    return tuple(path.read_bytes() for path in (files.authority, files.key, files.certificate))
