"""Changes the files behind the ledger's back. The ledger must refuse them or lose nothing."""

import json
import random
import shutil
import sqlite3

import pytest
from ledger_helpers import answers_of, label, open_ledger

from pate_tf.ledger import Ledger, LedgerError


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "sensitive"
    with open_ledger(folder, epsilon_budget=20.0) as ledger:
        for start in range(0, 60, 20):
            label(ledger, start, start + 20)
        shutil.copytree(folder, folder.parent / "killed")  # its rows are in SQLite's log
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "sensitive")


@pytest.fixture(scope="module")
def truth(original):
    return observe(original)


def observe(folder):
    """Returns everything that a ledger reports, opened in both ways."""
    with Ledger.read(folder) as ledger:
        read = (ledger.history(), ledger.charges, ledger.num_answered, ledger.head)
    with open_ledger(folder) as ledger:
        answers = {q: answers_of(label(ledger, q, q + 10)) for q in range(0, 60, 10)}
        opened = (ledger.history(), ledger.charges, ledger.num_answered, ledger.head)
        return (read, opened, answers, ledger.epsilon_budget, ledger.delta, ledger.ensemble_digest)


def execute(folder, *statements):
    connection = sqlite3.connect(folder / "ledger.sqlite3")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def refused(folder, match=None):
    for open_it in (lambda: Ledger.read(folder), lambda: open_ledger(folder)):
        with pytest.raises(LedgerError, match=match) as info:
            open_it()
        assert "\n" not in str(info.value)
    return True


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rows SET details = replace(details, '\"num_queries\":20', '\"num_queries\":10')",
        "UPDATE rows SET time = '2000-01-01T00:00:00+00:00' WHERE sequence = 4",
        "UPDATE rows SET kind = 'budget' WHERE sequence = 3",
        "UPDATE rows SET digest = zeroblob(32) WHERE sequence = 5",
        "UPDATE rows SET details = 'not JSON' WHERE sequence = 2",
        "DELETE FROM rows WHERE sequence = 1",
        "DELETE FROM rows WHERE sequence = 4",
        "DELETE FROM rows WHERE sequence = 7",
        "DELETE FROM rows WHERE sequence >= 4",
        "DELETE FROM rows",
        "UPDATE rows SET sequence = 9 WHERE sequence = 7",
        "INSERT INTO rows VALUES (8, 'now', 'debit', '{}', zeroblob(32))",
        "UPDATE answers SET label = (label + 1) % 3 WHERE position = 17",
        "UPDATE answers SET label = NULL WHERE position = 17",
        "UPDATE answers SET noisy_counts = zeroblob(24) WHERE position = 17",
        "UPDATE answers SET debit = 2 WHERE position = 45",
        "UPDATE answers SET query = zeroblob(16) WHERE position = 60",
        "DELETE FROM answers WHERE position = 60",
        "DELETE FROM answers WHERE position = 3",
        "INSERT INTO answers VALUES (61, 2, zeroblob(16), 0, NULL)",
        "INSERT INTO answers VALUES (-1, 2, zeroblob(16), 0, NULL)",
        "CREATE TABLE more (value)",
        "CREATE TRIGGER forget AFTER INSERT ON rows BEGIN DELETE FROM rows; END",
        "DROP TABLE answers",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = 2",
        "PRAGMA user_version = 4",
    ],
)
def test_an_edited_or_truncated_ledger_is_refused(folder, statement):
    execute(folder, statement)
    assert refused(folder)


def test_a_tail_cut_off_together_with_its_answers_is_refused(folder):
    execute(folder, "DELETE FROM rows WHERE sequence >= 6", "DELETE FROM answers WHERE debit >= 6")
    assert refused(folder, "rows were removed")


def test_another_ledger_under_the_same_head_is_refused(folder, tmp_path):
    with open_ledger(tmp_path / "other") as ledger:
        for start in range(0, 60, 20):
            label(ledger, start, start + 20)
    shutil.copy(tmp_path / "other" / "ledger.sqlite3", folder / "ledger.sqlite3")
    assert refused(folder, "differs from its note in")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"sequence": "x", "digest": "y"}', '{"sequence": null}']
)
def test_a_broken_head_is_refused(folder, text):
    (folder / "ledger.head.json").write_text(text)
    assert refused(folder)


def test_an_emptied_or_foreign_file_is_refused(folder):
    (folder / "ledger.sqlite3").write_bytes(b"")
    assert refused(folder)
    (folder / "ledger.sqlite3").write_bytes(b"not a database" * 1000)
    assert refused(folder)


@pytest.mark.parametrize("name", ["ledger.sqlite3", "ledger.sqlite3-wal", "ledger.head.json"])
def test_a_flipped_bit_is_refused_or_harmless(original, truth, tmp_path, name):
    """SQLite drops the part of a killed process's log after the first wrong checksum."""
    source = original.parent / "killed" if name.endswith("wal") else original
    content = (source / name).read_bytes()
    generator = random.Random(5)
    offsets = range(len(content))
    # a third of the flips in the first header and the page headers, where damage is most likely
    if len(content) > 300:
        offsets = [generator.randrange(100) for _ in range(100)]
        offsets += [generator.randrange(len(content)) for _ in range(200)]
    num_refused = 0
    for number, offset in enumerate(offsets):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*-shm"))
        changed = bytearray(content)
        changed[offset] ^= 1 << generator.randrange(8)
        (folder / name).write_bytes(changed)
        try:
            seen = observe(folder)
        except LedgerError as error:
            assert "\n" not in str(error)
            num_refused += 1
        else:
            assert seen == truth, f"{name} at {offset}: silently wrong"
        shutil.rmtree(folder)
    assert num_refused > len(offsets) // 4


def test_a_head_that_lags_by_one_row_is_brought_up_to_date(folder, truth):
    with Ledger.read(folder) as ledger:
        before = ledger.history()[-2]
    note = {"sequence": before.sequence, "digest": before.digest}
    (folder / "ledger.head.json").write_text(json.dumps(note))
    assert observe(folder) == truth
    assert json.loads((folder / "ledger.head.json").read_text())["sequence"] == before.sequence + 1
