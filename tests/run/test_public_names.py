"""`import pate_tf` is quick, needs no TensorFlow, and has exactly these names."""

import inspect
import os
import re
import subprocess
import sys

import pytest
from script_processes import REPOSITORY, modules_after, run_fresh

import pate_tf

HEAVY = ("tensorflow", "keras", "sklearn", "tensorflow_datasets", "matplotlib", "scipy", "numpy")


def test_the_import_loads_nothing_heavy_and_little_at_all():
    modules = modules_after("import pate_tf; pate_tf.__all__; dir(pate_tf)")
    assert not modules & set(HEAVY)
    of_library = {"pate_tf", "pate_tf.core", "pate_tf.core.environment"}
    assert {name for name in modules if name.startswith("pate_tf")} == of_library


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


def test_a_command_starts_tensorflow_in_silence_and_collects_no_garbage_of_it():
    program = (
        "import gc; from pate_tf.core.environment import prepare_start_of_tensorflow as prepare; "
        "prepare(is_shown=False, is_command=True); import tensorflow; "
        "print(gc.isenabled(), gc.get_freeze_count() > 10**5)"
    )
    ended = run_fresh("-c", program, folder=REPOSITORY)
    assert (ended.out, ended.err) == ("True True\n", "")


def test_the_types_that_a_checker_sees_are_the_names_that_there_are():
    source = inspect.getsource(pate_tf)
    block = source[source.index("if TYPE_CHECKING:") : source.index("__version__")]
    seen = set(re.findall(r"\b([A-Za-z_]+)(?=[,\n])", re.sub(r"from \S+ import", "", block)))
    assert seen - {"TYPE_CHECKING"} == set(pate_tf.__all__)
