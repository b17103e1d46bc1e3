"""The two small files: read back as written, every mistake one line."""

import pytest
from silo_helpers import RANDOMISED, SECURE, batch, policy

from pate_tf.silos import Member, Policy, Roster
from pate_tf.silos.messages import Reason

ROSTER = Roster(
    run_id="r-1",
    delta=1e-5,
    members=(
        Member(name="a", epsilon=1.0, queries=10),
        Member(name="b", epsilon=0.5, queries=20),
    ),
)


def test_a_policy_comes_back_as_written_and_explains_itself(tmp_path):
    for one in (policy(), policy(allowed=("secure_histogram",), delta=1e-9)):
        one.write(tmp_path / "policy.toml")
        assert Policy.read(tmp_path / "policy.toml") == one
    page = (tmp_path / "policy.toml").read_text()
    assert all("#" in line for line in page.splitlines() if line.startswith(("epsilon", "least")))


def test_a_roster_comes_back_as_written(tmp_path):
    ROSTER.write(tmp_path / "roster.toml")
    assert Roster.read(tmp_path / "roster.toml") == ROSTER


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("epsilon = 1000.0", "epsilon = 0", "epsilon_budget: expected above 0"),
        ("epsilon = 1000.0", 'epsilon = "many"', "epsilon as a number"),
        ("epsilon = 1000.0", "epsilon = inf", "epsilon as a number"),
        ("epsilon = 1000.0", "epsilon = nan", "epsilon as a number"),
        ("epsilon = 1000.0", "epsilon = true", "epsilon as a number"),
        ("epsilon = 1000.0", "", "expected epsilon, got none"),
        ("epsilon = 1000.0", "epsilon = 1.0\nbudgett = 3", "nothing else, got budgett"),
        ("[budget]", "[budget", "expected TOML"),
        ("[queries]", "[other]", "expected queries"),
        ("delta = 1e-06", "delta = 0.5", "from 0 to 0.1"),
        ("least_parties = 3", "least_parties = 2", "least_parties: expected at least 3"),
        ('"randomised_response", ', '"clear_votes", ', "allowed as a list of"),
        ('silo = "clinic"', 'silo = "the clinic"', "silo"),
        ("most_per_batch = 10000", "most_per_batch = 0", "at least 1"),
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
        ('name = "b"', 'name = "a"', "different names"),
        ("queries = 20", "queries = 2.5", "whole number"),
        ("epsilon = 0.5", "epsilon = -1", "above 0"),
        ("delta = 1e-05", "delta = 2", "0.1"),
        ('run = "r-1"', 'run = "r 1"', "run_id"),
        ('run = "r-1"', 'run = "r-1"\nother = 1', "nothing else"),
    ],
)
def test_mistakes_in_a_roster_are_one_line(tmp_path, old, new, match):
    path = tmp_path / "roster.toml"
    ROSTER.write(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=match) as error:
        Roster.read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("mechanism", "changes", "reason"),
    [
        (RANDOMISED, {}, None),
        ({**RANDOMISED, "epsilon": 1.1}, {}, Reason.QUERY_TOO_DEAR),
        (RANDOMISED, {"allowed": ("secure_histogram",)}, Reason.MECHANISM_NOT_ALLOWED),
        ({**RANDOMISED, "name": "secure_histogram"}, {}, Reason.MECHANISM_NOT_ALLOWED),
        (SECURE, {}, None),
        ({**SECURE, "sigma": 39.0}, {}, Reason.QUERY_TOO_DEAR),
        (SECURE, {"least_parties": 5}, Reason.MECHANISM_NOT_ALLOWED),
        ({**SECURE, "num_parties": 7}, {"least_threshold": 2}, Reason.MECHANISM_NOT_ALLOWED),
        (RANDOMISED, {"most_per_batch": 2}, Reason.MALFORMED),
    ],
)
def test_what_a_policy_objects_to(mechanism, changes, reason):
    one, asked = policy(**changes), batch(0, 3, mechanism=mechanism)
    assert one.objection(asked, asked.charge()) is reason
