"""A new strategy is one file: its name is a choice of the flag, chosen and stated."""

import subprocess
import sys

from script_processes import REPOSITORY

TOY = """
import numpy as np
from pate_tf.queries.strategies import Strategy, register

register(Strategy(
    name="last", help="the last ones", words="the last of the public pool",
    choose=lambda pool, num_queries, seed: np.arange(len(pool))[-num_queries:],
))
"""
PROGRAM = """
import runpy, sys
import pate_tf.queries.strategies as strategies
runpy.run_path(sys.argv[1])
from absl import flags
from pate_tf.cli import student
student.define()
flag = flags.FLAGS["query_strategy"]
assert "last" in flag.parser.enum_values and "last: the last ones" in flag.help, flag.help
from pate_tf.statement import labels as words
assert words.STRATEGIES["last"].words == "the last of the public pool"
assert "tensorflow" not in sys.modules
from query_helpers import POOL, Answers
from pate_tf.queries.rounds import QueryConfig
from pate_tf.queries.rounds import ask_in_rounds
asked = ask_in_rounds(QueryConfig(strategy="last", num_queries=3), POOL, Answers())
print(*asked.queries)
"""


def test_a_file_is_all_that_a_strategy_takes(tmp_path):
    (tmp_path / "last.py").write_text(TOY)
    folders = [REPOSITORY, REPOSITORY / "tests", REPOSITORY / "tests" / "queries"]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "last.py")],
        env={"PYTHONPATH": ":".join(map(str, folders)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["297", "298", "299"]
