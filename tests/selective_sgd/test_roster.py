"""The roster of shared training: what it says, what it refuses, and what tells two apart."""

import pytest

from pate_tf.selective_sgd.roster import Roster

GOOD = """
run = "r-1"
dataset = "digits"

[settings]
rounds = 3
gamma = 0.5
stat_period = 7
server_rate = 0.5

[[participant]]
name = "clinic"

[[participant]]
name = "school"
"""
PRIVATE = "[privacy]\nkind = 'record'\ntarget_epsilon = 4.0\nholders = 2\n"


def read(folder, text):
    (folder / "roster.toml").write_text(text)
    return Roster.read(folder / "roster.toml")


def test_a_roster_says_who_and_how(tmp_path):
    found = read(tmp_path, GOOD)
    assert found.names == ("clinic", "school")
    assert (found.run, found.dataset, found.model) == ("r-1", "digits", None)
    settings = found.settings
    assert (settings.num_participants, settings.rounds, settings.gamma) == (2, 3, 0.5)
    assert (settings.stat_period, settings.server_rate, settings.upload) == (7, 0.5, 0.1)
    assert found.privacy.kind == "none" and found.holders == 1
    assert [found.number(name) for name in found.names] == [0, 1]
    with pytest.raises(ValueError, match="on the roster"):
        found.number("another")


def test_gaussian_noise_brings_its_own_defaults(tmp_path):
    found = read(tmp_path, GOOD.replace("gamma = 0.5\n", "") + PRIVATE)
    assert found.privacy.target_epsilon == 4.0 and found.holders == 2
    settings = found.settings
    assert (settings.protocol, settings.upload, settings.learning_rate) == ("synchronous", 1.0, 1.0)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('run = "r-1"', "", "expected run, got none"),
        ('run = "r-1"', 'run = "../up"', "run: expected 1 to 64 letters"),
        ('dataset = "digits"', "dataset = 3", "dataset: expected a text"),
        ("rounds = 3", "rounds = 0", "rounds: expected"),
        ("rounds = 3", 'rounds = "three"', "rounds: expected a whole number"),
        ("rounds = 3", "num_participants = 9", "expected nothing else, got num_participants"),
        ("rounds = 3", "surprise = 9", "expected nothing else, got surprise"),
        ("gamma = 0.5", "gamma = -1.0", "gamma: expected in (0"),
        ("gamma = 0.5", 'protocol = "chaos"', "protocol: expected one of round_robin, random"),
        ('"school"', '"clinic"', "participants: expected different names"),
        ('"school"', '"a b"', "name: expected 1 to 64 letters"),
        ('"school"', '"school"\nkey = 1', "expected nothing else, got key"),
        ("[settings]", PRIVATE + "[settings]", "gamma: expected none with privacy record"),
        (
            "[settings]\nrounds = 3\ngamma = 0.5",
            PRIVATE + 'choice = "history"\n[settings]',
            "choice: expected",
        ),
        (
            "[settings]\nrounds = 3\ngamma = 0.5",
            PRIVATE.replace("= 2", "= 3") + "[settings]",
            "holders: expected from 1 to 2",
        ),
        ("[settings]", '[privacy]\nkind = "record"\n[settings]', "target_epsilon: expected one"),
        ("[settings]", "[settings", "expected TOML"),
    ],
)
def test_mistakes_are_one_line_that_names_the_file(tmp_path, old, new, expected):
    with pytest.raises(ValueError) as caught:
        read(tmp_path, GOOD.replace(old, new))
    assert expected in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "roster.toml"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r-1", "r-2"),
        ("rounds = 3", "rounds = 4"),
        ('"clinic"', '"hospital"'),
        ('dataset = "digits"', 'dataset = "digits"\nmodel = "linear"'),
        ("gamma = 0.5\n", PRIVATE),
    ],
)
def test_rosters_that_differ_are_told_apart(tmp_path, old, new):
    one = read(tmp_path, GOOD)
    if new == PRIVATE:
        other = read(tmp_path, GOOD.replace(old, "") + new)
    else:
        other = read(tmp_path, GOOD.replace(old, new))
    assert len(one.run_id) == 16 and one.run_id != other.run_id
    assert one.run_id == read(tmp_path, GOOD + "# the same\n").run_id
