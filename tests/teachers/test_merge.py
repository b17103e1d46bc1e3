"""Array jobs: ranges of teachers trained apart, merged, through the script."""

import pytest
from script_processes import MAX_STEPS, NUM_TEACHERS, run_script

from pate_tf.core import artifacts
from pate_tf.teachers import teacher_training as run
from pate_tf.teachers.kinds import load_ensemble

FLAGS = (f"--nb_teachers={NUM_TEACHERS}", f"--max_steps={MAX_STEPS}")
MIDDLE = NUM_TEACHERS // 2


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Two finished jobs that share the teachers of the `trained` fixture."""
    folder = tmp_path_factory.mktemp("jobs")
    for name, teachers in (("low", f"0-{MIDDLE - 1}"), ("high", f"{MIDDLE}-{NUM_TEACHERS - 1}")):
        ended = run_script(
            "train_teachers.py",
            *FLAGS,
            f"--teacher_id={teachers}",
            f"--train_dir={folder / name}",
            folder=folder,
        )
        assert ended.code == 0, ended.err
        assert not run.ensemble_folder(artifacts.RunDirectory(folder / name)).exists()
    return folder


def merge(folder, target, *names, flags=FLAGS):
    runs = ",".join(str(folder / name) for name in names)
    return run_script(
        "train_teachers.py",
        *flags,
        f"--merge_from={runs}",
        f"--train_dir={target}",
        "--export_each",
        folder=folder,
    )


def digest(folder):
    return load_ensemble(run.ensemble_folder(artifacts.RunDirectory(folder))).digest


def test_merged_jobs_are_the_ensemble_of_one_job(jobs, trained, tmp_path):
    ended = merge(jobs, tmp_path / "run", "low", "high")
    assert ended.code == 0, ended.err
    assert digest(tmp_path / "run") == digest(trained[0])
    each = tmp_path / "run" / "sensitive" / "teachers" / "each"
    assert sorted(path.name for path in each.iterdir()) == [
        f"{teacher:06d}" for teacher in range(NUM_TEACHERS)
    ]
    # Once more changes nothing.
    assert merge(jobs, tmp_path / "run", "low", "high").code == 0
    assert digest(tmp_path / "run") == digest(trained[0])


@pytest.mark.parametrize(
    ("names", "flags", "told"),
    [
        (("high",), FLAGS, f"{MIDDLE} are missing, the first is 0"),
        (("low",), FLAGS, f"the first is {MIDDLE}"),
        (("low", "low_again", "high"), FLAGS, "expected every teacher once"),
        (("low", "high"), (FLAGS[0], "--max_steps=7"), "max_steps"),
        (("low", "nowhere"), FLAGS, "expected trained teachers in"),
    ],
    ids=["gap", "gap at the end", "duplicate", "other configuration", "no such run"],
)
def test_a_wrong_merge_is_one_clear_line(jobs, tmp_path, names, flags, told):
    if "low_again" in names and not (jobs / "low_again").exists():
        ended = run_script(
            "train_teachers.py",
            *FLAGS,
            "--teacher_id=0",
            f"--train_dir={jobs / 'low_again'}",
            folder=jobs,
        )
        assert ended.code == 0, ended.err
    ended = merge(jobs, tmp_path / "run", *names, flags=flags)
    assert ended.code == 1
    assert told in ended.err
    assert "Traceback" not in ended.err
    assert not run.ensemble_folder(artifacts.RunDirectory(tmp_path / "run")).exists()
    if "nowhere" in names:
        assert not (tmp_path / "run").exists()
        assert not (jobs / "nowhere").exists()
