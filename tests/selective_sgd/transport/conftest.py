"""Certificates of two authorities, made once."""

import pytest
from parameter_helpers import NAMES, STRANGER

from pate_tf.net.certificates import write_demo_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Files by name, of the authority that all trust."""
    return write_demo_certificates(tmp_path_factory.mktemp("certificates"), [*NAMES, STRANGER])


@pytest.fixture(scope="session")
def other_certificates(tmp_path_factory):
    """The same names, signed by another authority."""
    return write_demo_certificates(tmp_path_factory.mktemp("others"), [*NAMES, STRANGER])
