"""A data set larger than the memory a process may take."""

import subprocess
import sys

import numpy as np
from script_processes import REPOSITORY

NUM_RECORDS = 604_388  # SVHN's train and extra: 1.86 GB

PROGRAM = """
import resource, sys
import numpy as np
from pate_tf.core import artifacts
from pate_tf.core.partition import random_partition
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import PrivateExamples

limit = 400 * 2**20  # of memory that is not a file's
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
inputs = np.asarray(np.load(sys.argv[1], mmap_mode="r"))
dataset = Dataset(
    name="large", kind="image", input_shape=(32, 32, 3), value_range=(0, 255), num_classes=10,
    pool_size=1,
)
examples = PrivateExamples(dataset, inputs, np.arange(len(inputs)) % 10)
artifacts.digest_array(examples.inputs)
partition = random_partition(num_records=len(examples), num_teachers=250, seed=0)
for records in partition.all_records():
    share = examples.inputs[records]
print(len(examples), share.shape[0])
try:
    np.array(inputs)
except MemoryError:
    print("a copy does not fit")
"""


def test_shares_of_a_large_mapped_set_are_gathered_in_little_memory(tmp_path):
    path = tmp_path / "inputs.npy"
    shape = (NUM_RECORDS, 32, 32, 3)
    with open(path, "wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)))  # a hole: takes no place on the disk
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        cwd=REPOSITORY,
        env={"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"{NUM_RECORDS} 2417", "a copy does not fit"]
