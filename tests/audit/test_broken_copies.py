"""A deliberately broken copy of the package is caught by the command that a person types."""

import os
import shutil
import subprocess
import sys

import pytest
from script_processes import REPOSITORY

# The noise of a whole release comes from a seed.
FILE = "aggregation/noise.py"
BEFORE = "    drawn = np.empty(size, np.int64)\n    for start in range"
AFTER = (
    "    del add_noise\n"
    "    return np.random.default_rng(0).normal(0.0, scale, size).round().astype(np.int64)\n"
    "    drawn = np.empty(size, np.int64)\n    for start in range"
)


@pytest.mark.long
@pytest.mark.parametrize("code", [0, 1])
def test_seeded_noise_is_caught(tmp_path, code):
    path = tmp_path / "pate_tf" / FILE
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "pate_tf", tmp_path / "pate_tf", ignore=ignored)
    text = path.read_text()
    assert text.count(BEFORE) == 1
    path.write_text(text.replace(BEFORE, AFTER) if code else text)
    arguments = ("audit", "mechanism", "gaussian_noisy_max", "--sigma=2", "--draws=1600")
    ended = subprocess.run(
        [sys.executable, "-m", "pate_tf.cli.main", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    # 2: so few draws need not have power.
    assert ended.returncode == 1 if code else ended.returncode in (0, 2), (
        ended.stdout + ended.stderr
    )
    assert ("violation    noise source" in ended.stdout) == bool(code)
