"""Certificates of two authorities, made once."""

import pytest
from transport_helpers import AGGREGATORS, SILOS, STRANGER

from pate_tf.net.credentials import write_demo_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Files by name, of the authority that everybody trusts."""
    folder = tmp_path_factory.mktemp("certificates")
    return write_demo_certificates(folder, [*SILOS, *AGGREGATORS, STRANGER])


@pytest.fixture(scope="session")
def other_certificates(tmp_path_factory):
    """The same names, signed by somebody else."""
    return write_demo_certificates(tmp_path_factory.mktemp("others"), [*SILOS, STRANGER])
