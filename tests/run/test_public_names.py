"""`import pate_tf`: quick, without TensorFlow, with these names and no others."""

import inspect
import os
import re
import subprocess
import sys

import pytest
from script_processes import REPOSITORY, modules_after

import pate_tf

HEAVY = ("tensorflow", "keras", "sklearn", "tensorflow_datasets", "matplotlib", "scipy", "numpy")


def test_the_import_loads_nothing_heavy_and_little_at_all():
    found = modules_after("import pate_tf; pate_tf.__all__; dir(pate_tf)")
    assert not found & set(HEAVY)
    assert {name for name in found if name.startswith("pate_tf")} == {"pate_tf"}


@pytest.mark.parametrize(("given", "found"), [(None, "1"), ("0", "0")])
def test_the_import_asks_tensorflow_for_onednn_unless_the_environment_says(given, found):
    name = "TF_ENABLE_ONEDNN_OPTS"
    environment = {key: value for key, value in os.environ.items() if key != name}
    ended = subprocess.run(
        [sys.executable, "-c", f"import pate_tf, os; print(os.environ[{name!r}])"],
        cwd=REPOSITORY,
        env=environment if given is None else environment | {name: given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == [found]


def test_the_types_that_a_checker_sees_are_the_names_that_there_are():
    source = inspect.getsource(pate_tf)
    block = source[source.index("if TYPE_CHECKING:") : source.index("__version__")]
    seen = set(re.findall(r"\b([A-Za-z_]+)(?=[,\n])", re.sub(r"from \S+ import", "", block)))
    assert seen - {"TYPE_CHECKING"} == set(pate_tf.__all__)


EXAMPLE = """
import keras
import pate_tf

def net(dataset: pate_tf.Dataset) -> keras.Model:
    return keras.Sequential()

data = pate_tf.Data.load("digits")
teachers = pate_tf.Teachers(net, num_teachers=20, directory="runs/mine").fit(data.private)
mechanism = pate_tf.LaplaceNoisyMax(scale=5.0)
with pate_tf.Labeller(teachers, mechanism, epsilon_budget=30.0, delta=1e-5) as labeller:
    labels = labeller.label(data.pool, num_queries=100, strategy="diverse")
    reveal_type(labels.cost.epsilon)
    reveal_type(labeller.spent())
student = pate_tf.Student("consistency").fit(data.pool, labels)
reveal_type(student)
reveal_type(student.publish("released").statement)
pate_tf.Teachers(net, teachers=3)
"""


def test_a_type_checker_sees_real_types(tmp_path):
    (tmp_path / "example.py").write_text(EXAMPLE)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml")),
            *("--cache-dir", str(tmp_path / "cache"), str(tmp_path / "example.py")),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
    )
    revealed = re.findall(r'Revealed type is "(.*?)"', ended.stdout)
    assert [name.removeprefix("builtins.") for name in revealed] == [
        "float",
        "pate_tf.ledger.ledger.Spending",
        "pate_tf.run.student.Student",
        "pate_tf.statement.labels.LabelsStatement",
    ], ended.stdout
    errors = re.findall(r"error: (.*)", ended.stdout)
    assert len(errors) == 1, ended.stdout
    assert 'Unexpected keyword argument "teachers"' in errors[0]
