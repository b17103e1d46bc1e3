"""Certificates of two authorities, made once."""

import pytest
from transport_helpers import AGGREGATORS, SILOS, STRANGER

from pate_tf.net.credentials import write_demo_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Returns files by name, from the authority that everybody trusts."""
    folder = tmp_path_factory.mktemp("certificates")
    return write_demo_certificates(folder, [*SILOS, *AGGREGATORS, STRANGER])


@pytest.fixture(scope="session")
def other_certificates(tmp_path_factory):
    """Returns files with the same names, signed by another authority."""
    return write_demo_certificates(tmp_path_factory.mktemp("others"), [*SILOS, STRANGER])
