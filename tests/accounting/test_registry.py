"""The registry of mechanisms: every member is whole or says why not, and a new one is one file."""

import ast
import dataclasses
import functools
import itertools
import json
import math
import pathlib

import numpy as np
import pytest
import reference
import toy_mechanisms
from toy_mechanisms import TOYS, ToyGate, ToyHistogram, ToyNoisyMax

from pate_tf.accounting import mechanisms, planning
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.accounting.composition import dp_event
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    Plurality,
    base,
    register,
)
from pate_tf.accounting.mechanisms.base import Flag, OneScale, OutcomeLaw, Parameter, Target
from pate_tf.accounting.moments import data_dependent_alphas
from pate_tf.accounting.planning import RELEASES, ReleasePlan, least_noise, most_queries
from pate_tf.release.noise import SeededNoise, check_drawable

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "pate_tf"
MEMBERS = dict(base.MECHANISMS)
COUNTS = np.array([[9, 3, 2], [5, 5, 4]])
ASSUMED = planning.AssumedVotes(num_teachers=14, num_classes=3)


def one_of(kind: type[Mechanism]) -> Mechanism:
    """A member with the defaults of its flags; one without flags is planned."""
    if "flags" in kind.lacks and "draw" not in kind.lacks:
        return kind.for_target(Target(epsilon=1.0, delta=1e-5, num_queries=2), COUNTS * 1_000)
    if "flags" in kind.lacks and "calibration" not in kind.lacks:
        return kind.of_scale(20.0)
    fields = {one.field: one.flag.to_field(one.flag.default) for one in kind.parameters}
    return kind(**fields)


@pytest.fixture
def toys(monkeypatch):
    monkeypatch.setattr(base, "MECHANISMS", dict(base.MECHANISMS))
    for toy in TOYS:
        register(toy)


def can(action) -> bool:
    """Whether something works; if not, its refusal says why in one line."""
    try:
        action()
    except ValueError as refusal:
        assert "expected one with" in str(refusal) and "\n" not in str(refusal)
        return False
    return True


@pytest.mark.parametrize("kind", MEMBERS.values(), ids=MEMBERS)
def test_a_member_does_all_that_it_does_not_say_it_lacks(kind):
    """Not only does the registry say so: it is tried."""
    member = one_of(kind)
    dp_accounting = pytest.importorskip("dp_accounting")
    done = {
        "draw": can(lambda: member.draw(COUNTS, SeededNoise(1))),
        "words": can(member.in_words),
        "flags": {one.field for one in kind.parameters}
        == {field.name for field in dataclasses.fields(kind)},
        "calibration": issubclass(kind, OneScale) and can(lambda: kind.of_scale(3.0)),
        "dp event": can(lambda: dp_accounting.SelfComposedDpEvent(dp_event(member), 2)),
        "bounds": bool(member.bounds),
        "outcome law": kind is not Plurality
        and isinstance(member, OutcomeLaw)
        and can(lambda: member.outcome_probabilities(COUNTS)),
    }
    assert {what for what, works in done.items() if not works} == set(kind.lacks)
    assert all(len(reason) > 10 for reason in kind.lacks.values())


@pytest.mark.parametrize(
    "kind", [one for one in base.offered().values() if "outcome law" not in one.lacks]
)
def test_a_member_that_draws_has_a_slow_twin(kind):
    member = one_of(kind)
    expected = [float(chance) for chance in reference.TWINS[kind.name](member, (9, 3, 2))]
    np.testing.assert_allclose(
        member.outcome_probabilities(np.array([[9, 3, 2]]))[0], expected, rtol=1e-9
    )


@pytest.mark.parametrize("kind", base.offered().values(), ids=base.offered())
def test_each_has_its_help_and_its_place_in_the_docs(kind):
    for parameter in kind.parameters:
        for flag in parameter.flags:
            assert flag.help.endswith(".") and math.isfinite(flag.default)
    docs = (LIBRARY.parent / "docs" / "reference" / "mechanisms.md").read_text()
    assert f"`{kind.name}`" in docs


@pytest.mark.parametrize("kind", [k for k in MEMBERS.values() if "calibration" not in k.lacks])
def test_more_scale_never_costs_more(kind):
    moments = np.array([0.5, 3.0, 40.0])
    costs = [kind.of_scale(scale).alphas(moments) for scale in (0.5, 1.0, 7.0, 300.0)]
    assert all((quiet >= loud).all() for quiet, loud in itertools.pairwise(costs))
    scales = set(kind.of_scale(5.0).noise_scales.values())
    assert scales <= {5.0, math.nextafter(5.0, math.inf)}


def test_users_scales():
    assert LaplaceNoisyMax(scale=5.0) == LaplaceNoisyMax(gamma=0.2)
    assert GaussianNoisyMax(sigma=40.0) == GaussianNoisyMax(sigma=40.0)
    with pytest.raises(ValueError, match=r"expected one with a single scale.*threshold"):
        least_noise(ConfidentGaussianNoisyMax, num_queries=1, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="scale: expected above 0"):
        LaplaceNoisyMax(scale=0.0)


def test_every_release_is_a_charge_that_says_what_it_lacks():
    for release in RELEASES:
        plan = ReleasePlan(
            release=release,
            bound="two_sided",
            moment=10.0,
            smoothness=0.01,
            sigma=9.0,
            failure=1e-6,
            num_queries=20,
            budget=1.0 if release == "gate" else None,
        )
        assert charge_from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
        assert plan.number_charged(20) == plan.number_charged(0) == 1
        assert plan.several(2) == f"2 releases of the data-dependent cost ({release}, sigma 9)"
        assert plan.in_words().endswith(".")
        assert can(functools.partial(dp_event, plan)) == (release != "smooth_sensitivity")


def test_no_file_of_the_library_asks_what_kind_a_charge_is():
    """Members are told apart by what they say of themselves."""
    kinds = {kind.__name__ for kind in MEMBERS.values()}
    kinds |= {"PureNoisyMax", "AdditiveNoisyMax"}
    asked = []
    for path in LIBRARY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "isinstance",
                "issubclass",
            ):
                names = {
                    getattr(one, "id", getattr(one, "attr", None)) for one in ast.walk(node.args[1])
                }
                asked += [f"{path.name}:{node.lineno}"] if names & kinds else []
    assert asked == []


# A new mechanism is one file.


def test_a_file_of_the_package_is_found_without_being_named(tmp_path, monkeypatch):
    toys = pathlib.Path(toy_mechanisms.__file__).read_text()
    (tmp_path / "found_toys.py").write_text(f"{toys}\n\nregister_toys()\n")
    monkeypatch.setattr(base, "MECHANISMS", dict(base.MECHANISMS))
    monkeypatch.setattr(mechanisms, "__path__", [*mechanisms.__path__, str(tmp_path)])
    mechanisms.discover()
    found = base.MECHANISMS["toy_noisy_max"]
    assert found in base.offered().values()  # the command line's choices
    assert "toy_eps" in base.flags()
    toy = least_noise(found, num_queries=20, epsilon=1.0, delta=1e-5)  # by a plan
    check_drawable(toy)  # by the labeller
    assert charge_from_dict(json.loads(json.dumps(toy.to_dict()))) == toy  # by the ledger


@pytest.mark.usefixtures("toys")
def test_a_toy_is_drawn_and_accounted_for():
    toy = ToyNoisyMax(epsilon=0.5)
    check_drawable(toy)
    assert len(toy.draw(COUNTS, SeededNoise(1)).labels) == 2
    assert charge_from_dict(json.loads(json.dumps(toy.to_dict()))) == toy
    assert 0.0 < toy.data_independent_epsilon(num_queries=10, delta=1e-5)[0] <= 5.0
    assert toy.summary() == "toy_noisy_max, epsilon 0.5"
    assert toy.in_words() == "Toy noise of epsilon 0.5 is added to every number of votes."


@pytest.mark.usefixtures("toys")
def test_a_toy_is_calibrated():
    least = least_noise(ToyNoisyMax, num_queries=20, epsilon=1.0, delta=1e-5)
    assert least.data_independent_epsilon(num_queries=20, delta=1e-5)[0] <= 1.0
    louder = ToyNoisyMax(epsilon=least.epsilon * (1 + 1e-6))
    assert louder.data_independent_epsilon(num_queries=20, delta=1e-5)[0] > 1.0
    assert most_queries(least, epsilon=1.0, delta=1e-5) == 20


@pytest.mark.usefixtures("toys")
def test_a_toy_is_offered_unless_it_has_no_flags():
    assert {"toy_noisy_max", "toy_histogram"} <= set(base.offered())
    assert "toy_gate" not in base.offered()
    assert base.flags()["toy_eps"].default == 0.5


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: least_noise(ToyGate, num_queries=1, epsilon=1.0, delta=1e-5),
            "a single scale of noise, got toy_gate: it has no scale",
        ),
        (lambda: planning.outlook(ToyHistogram(sigma=3.0), ASSUMED, 2), "an outcome law.*: a toy"),
        (
            lambda: data_dependent_alphas(
                COUNTS, ToyNoisyMax(epsilon=0.5), np.ones(1), bound="two_sided"
            ),
            r"expected a bound of \[\] for toy_noisy_max",
        ),
        (lambda: Plurality().draw(COUNTS, SeededNoise(1)), "a sampler, got plurality: it has no"),
        (lambda: check_drawable(Plurality()), "noise, got plurality: it has no noise"),
    ],
)
def test_what_a_mechanism_lacks_is_refused_in_one_line(ask, message):
    with pytest.raises(ValueError, match=message) as refusal:
        ask()
    assert "\n" not in str(refusal.value)


def test_a_member_that_lacks_something_without_a_reason_is_not_registered(monkeypatch):
    monkeypatch.setattr(base, "MECHANISMS", dict(base.MECHANISMS))

    @dataclasses.dataclass(frozen=True)
    class Bare(Mechanism):
        epsilon: float
        name = "bare"

        def alphas(self, moments):
            return moments

    with pytest.raises(ValueError, match=r"bare: expected a reason.*draw, words, flags, calibr"):
        register(Bare)
    with pytest.raises(ValueError, match="expected a new name for a mechanism, got 'laplace"):
        register(LaplaceNoisyMax)

    class Clash(ToyNoisyMax):
        name = "clash"
        parameters = (Parameter(field="epsilon", flag=Flag(name="sigma", help="No.", default=1.0)),)

    with pytest.raises(ValueError, match="clash: expected the flag sigma as other mechanisms have"):
        register(Clash)
    assert set(base.MECHANISMS) == set(MEMBERS)


def test_a_mechanism_inherits_few_methods():
    """What somebody who adds one has to know of; what only some can do lies in base classes."""
    methods = {
        name
        for kind in Mechanism.__mro__[:-1]
        for name, value in vars(kind).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }
    assert len(methods) <= 15, sorted(methods)
