"""What a silo that randomises its own votes does not import, so that it stays small."""

from script_processes import modules_after

PROGRAM = """
import pathlib, sys, tempfile, time
import numpy as np
import pate_tf.cli.silo, pate_tf.silos.serving
from pate_tf.models.forest import Forest
from pate_tf.silos import Policy, Silo
from pate_tf.silos.messages import QueryBatch, RandomisedVotes

leaf = Forest(
    starts=np.array([0, 1]), children=np.full((1, 2), -1, np.int32), features=np.zeros(1, np.int32),
    thresholds=np.zeros(1), probabilities=np.eye(1, 3), num_features=2,
)
policy = Policy(silo="clinic", epsilon_budget=30.0, delta=1e-6)
with tempfile.TemporaryDirectory() as name:
    with Silo(policy, leaf, folder=pathlib.Path(name), num_classes=3) as silo:
        for first in (0, 20):  # the second batch is near the budget
            batch = QueryBatch(
                queries=np.arange(first, first + 40, dtype=np.float32).reshape(20, 2),
                run_id="r", batch_id=f"b{first}", num_classes=3,
                mechanism={"name": "randomised_response", "epsilon": 1.0},
                deadline=time.time() + 600,
            )
            assert isinstance(silo.answer(batch), RandomisedVotes)
"""


def test_it_imports_nothing_large_before_something_needs_it():
    imported = modules_after(PROGRAM)
    large = {"grpc", "tensorflow", "keras", "sklearn", "scipy", "pandas", "skops", "cryptography"}
    assert imported & large == set()
    assert {"numpy", "sqlite3"} <= imported
