"""Deliberately broken copies of the package, caught by the commands that a person types."""

import os
import shutil
import subprocess
import sys

import pytest
from script_processes import REPOSITORY

# Each: a file, what stands in it, and what stands there in the broken copy.
OVERLAPPING_SHARES = [
    (
        "core/partition.py",
        "        return np.split(order, np.cumsum(sizes)[:-1])\n",
        "        shares = np.split(order, np.cumsum(sizes)[:-1])\n"
        "        return [np.union1d(one, shares[place - 1]) for place, one in enumerate(shares)]\n",
    )
]
# Shares are disjoint, and every teacher sees the first record all the same.
RECORD_OF_ANOTHER = [
    (
        "teachers/on_features.py",
        "            yield one, part, examples.labels[shares[one]]\n",
        "            first = encoder.batch_features(np.asarray(examples.inputs[:1], np.float32))\n"
        "            labels = np.append(examples.labels[shares[one]], examples.labels[0])\n"
        "            yield one, np.concatenate([part, first]), labels\n",
    )
]
UNCLIPPED_SUMS = [
    (
        "models/encoder.py",
        "    found[is_usable, :-1] = scaled[is_usable] / norms[is_usable, None]\n",
        "    found[is_usable, :-1] = scaled[is_usable]\n",
    ),
    (
        "aggregation/feature_sums.py",
        "    steps[total[unit] > LATTICE**2] = 0.0\n",
        "",
    ),
]
SEED_AS_NOISE = [
    (
        "aggregation/noise.py",
        "    drawn = np.empty(size, np.int64)\n    for start in range",
        "    del add_noise\n"
        "    return np.random.default_rng(0).normal(0.0, scale, size).round().astype(np.int64)\n"
        "    drawn = np.empty(size, np.int64)\n    for start in range",
    )
]
PATE = (
    "teachers --dataset=digits --nb_teachers=8 --model=nearest_mean --representation=raw "
    "--train_dir=run"
)
SUMS = (
    "student --dataset=digits --method=feature_sums --representation=raw --epsilon=4 "
    "--student=supervised --max_steps=20 --train_dir=run"
)
RUN = "audit run --train_dir=run"


ALL = (OVERLAPPING_SHARES, RECORD_OF_ANOTHER, UNCLIPPED_SUMS, SEED_AS_NOISE)


@pytest.mark.parametrize("name, before, after", [edit for edits in ALL for edit in edits])
def test_what_the_copies_change_is_there(name, before, after):
    assert (REPOSITORY / "pate_tf" / name).read_text().count(before) == 1
    assert before != after


@pytest.fixture
def broken(tmp_path):
    """Returns what runs a command of a copy of the package that was broken by edits."""

    def copy(edits):
        shutil.copytree(
            REPOSITORY / "pate_tf",
            tmp_path / "copy" / "pate_tf",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for name, before, after in edits:
            path = tmp_path / "copy" / "pate_tf" / name
            path.write_text(path.read_text().replace(before, after))

        def run(command):
            return subprocess.run(
                [sys.executable, "-m", "pate_tf.cli.main", *command.split()],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(tmp_path / "copy")},
                capture_output=True,
                text=True,
                check=False,
                timeout=1_200,
            )

        return run

    return copy


@pytest.mark.long
@pytest.mark.parametrize(
    "edits, make, audit, found",
    [
        (OVERLAPPING_SHARES, PATE, RUN, "shares that training takes"),
        (RECORD_OF_ANOTHER, PATE, RUN, "teachers depend on their share alone"),
        (UNCLIPPED_SUMS, SUMS, RUN, "every vector's norm is at most 1"),
        (SEED_AS_NOISE, PATE, RUN, "noise source"),
        (
            SEED_AS_NOISE,
            "",
            "audit mechanism gaussian_noisy_max --sigma=2 --draws=1600",
            "noise source",
        ),
    ],
    ids=["overlapping shares", "a record of another", "unclipped", "seed: run", "seed: mechanism"],
)
def test_a_broken_copy_is_caught(broken, edits, make, audit, found):
    run = broken(edits)
    if make:
        made = run(make)
        assert made.returncode == 0, made.stderr
    ended = run(audit)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    violations = [line for line in ended.stdout.splitlines() if line.startswith("  violation")]
    assert any(found in line for line in violations), ended.stdout
    assert "VIOLATION after" in ended.stdout
    assert "Traceback" not in ended.stderr


@pytest.mark.long
def test_a_copy_that_was_not_broken_passes(broken):
    run = broken([])
    assert run(PATE).returncode == 0
    ended = run(RUN)
    assert ended.returncode == 0, ended.stdout + ended.stderr
