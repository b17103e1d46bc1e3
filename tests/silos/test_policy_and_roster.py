"""The two small files: read back as written, and every mistake gives one line."""

import dataclasses

import pytest
from silo_helpers import AGGREGATORS, RANDOMISED, SECURE, batch, policy

from pate_tf.silos import Member, Policy, SiloRoster
from pate_tf.silos.messages import Reason
from pate_tf.silos.protocol import Keys

ROSTER = SiloRoster(
    run="r-1",
    delta=1e-5,
    members=(
        Member(name="a", epsilon=1.0),
        Member(name="b", epsilon=0.5, identity=Keys("b").identity),
    ),
    aggregators=AGGREGATORS,
)


def test_files_come_back_as_written_and_policies_explain_themselves(tmp_path):
    path = tmp_path / "policy.toml"
    for written in (policy(), policy(allowed=("randomised_response",), delta=1e-9)):
        written.write(path)
        assert Policy.read(path) == written
        assert Policy.read(path, epsilon_budget=3.0).epsilon_budget == 3.0
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    assert len(lines) == len(dataclasses.fields(Policy))
    assert all("  # " in line for line in lines)
    ROSTER.write(tmp_path / "roster.toml")
    assert SiloRoster.read(tmp_path / "roster.toml") == ROSTER
    path.write_text('silo = "a"\nepsilon_budget = 1\ndelta = 0.0\n')  # all others by default
    assert Policy.read(path) == Policy(silo="a", epsilon_budget=1.0, delta=0.0)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("epsilon_budget = 1000.0", "epsilon_budget = 0", "epsilon_budget must be a number"),
        ("epsilon_budget = 1000.0", "", "silo and epsilon_budget are required"),
        ("epsilon_budget = 1000.0", "epsilon_budget = 1.0\nbudgett = 3", "unknown entries budg"),
        ("delta = 1e-06", "delta = [", "is not a TOML file"),
        ("delta = 1e-06", "delta = 0.5", "delta(: expected| must be)"),
        ("least_aggregators = 3", "least_aggregators = 2", "least_aggregators must be a number"),
        ('"randomised_response", ', '"clear_votes", ', "allowed must be a list of"),
        ('silo = "clinic"', 'silo = "the clinic"', "silo"),
    ],
)
def test_mistakes_in_a_policy_are_one_line(tmp_path, old, new, match):
    path = tmp_path / "policy.toml"
    policy().write(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=match) as error:
        Policy.read(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('name = "b"', 'name = "a"', "a appears twice"),
        ('name = "b"', 'name = "aggregator-1"', "has the same name"),
        ("epsilon = 0.5", "epsilon = -1", "epsilon must be a number"),
        ('run = "r-1"', 'run = "r 1"', "run"),
        ('run = "r-1"', 'run = "r-1"\nother = 1', "unknown entries other"),
        ('keys = "', 'keys = "x', "128 hexadecimal digits"),
    ],
)
def test_mistakes_in_a_roster_are_one_line(tmp_path, old, new, match):
    path = tmp_path / "roster.toml"
    ROSTER.write(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=match) as error:
        SiloRoster.read(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    ("mechanism", "changes", "reason"),
    [
        (RANDOMISED, {}, None),
        (dataclasses.replace(RANDOMISED, epsilon=1.1), {}, Reason.QUERY_TOO_DEAR),
        (RANDOMISED, {"allowed": ("secure_histogram",)}, Reason.MECHANISM_NOT_ALLOWED),
        (SECURE, {}, None),
        (dataclasses.replace(SECURE, sigma=39.0), {}, Reason.QUERY_TOO_DEAR),
        (SECURE, {"least_aggregators": 5}, Reason.MECHANISM_NOT_ALLOWED),
        (
            dataclasses.replace(SECURE, num_parties=7),
            {"least_threshold": 2},
            Reason.MECHANISM_NOT_ALLOWED,
        ),
        (RANDOMISED, {"most_per_batch": 2}, Reason.MALFORMED),
    ],
)
def test_what_a_policy_objects_to(mechanism, changes, reason):
    objection = policy(**changes).objection(batch(0, 3, mechanism=mechanism)) or (None, "")
    assert objection[0] is reason and all(f"has {name} = " in objection[1] for name in changes)
