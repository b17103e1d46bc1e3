"""Puts the folders of these tests into memory if possible, because aggregators write often."""

import os
import pathlib
import tempfile

import pytest

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def tmp_path():
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield pathlib.Path(folder)


@pytest.fixture(autouse=True)
def _in_memory(tmp_path_factory, monkeypatch):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        monkeypatch.setenv("PATE_TF_STATE", folder)
        monkeypatch.setattr(tempfile, "tempdir", MEMORY)
        yield
