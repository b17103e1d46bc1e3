"""What a student run shows on TensorBoard and states, and that nothing of the votes is in it."""

import pathlib

import event_files
import numpy as np
import pytest
from chosen_votes import PUBLIC, FakeEnsemble, opened, planned, student_settings

from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.core import artifacts
from pate_tf.run.student_run import make_student

POOL, QUERIES, TEACHERS = 400, 40, 100
RIGHT = np.tile(PUBLIC.labels[:POOL], (TEACHERS, 1))


def run(folder: pathlib.Path, votes: np.ndarray, model: str = "mlp", public=PUBLIC):
    directory = artifacts.RunDirectory(folder)
    ensemble = FakeEnsemble(votes)
    with opened(folder, ensemble, seed=3) as labeller:
        return make_student(
            student_settings(model, max_steps=150),
            public.split(POOL),
            plan=planned(
                ensemble,
                public.split(POOL).pool,
                mechanism=LaplaceNoisyMax(gamma=5.0),
                num_queries=QUERIES,
            ),
            teachers=ensemble,
            labeller=labeller,
            directory=directory,
        )


def shown(folder: pathlib.Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Every scalar below `released/logs`, by folder."""
    logs = folder / "released" / "logs"
    folders = {path.parent for path in logs.rglob("*tfevents*")}
    return {str(one.relative_to(logs)): event_files.scalars(one) for one in sorted(folders)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(folder, RIGHT)


def test_losses_accuracies_confusion_and_settings_are_shown(finished):
    folder, result = finished
    found = shown(folder)
    assert found.keys() == {"student/train", "student/held_out", "versions/1"}
    assert found["student/train"].keys() >= {"epoch_loss", "epoch_accuracy"}
    assert [step for step, _ in found["student/train"]["epoch_loss"]] == [0, 1]
    assert [step for step, _ in found["student/held_out"]["epoch_accuracy"]] == [0, 1]
    last = found["student/held_out"]["epoch_accuracy"][-1][1]
    assert last == pytest.approx(result.measured.student_accuracy.value, abs=1e-6)
    version = folder / "released" / "logs" / "versions" / "1"
    assert found["versions/1"] == {
        "result/student_accuracy": [(0, pytest.approx(result.measured.student_accuracy.value))],
        "result/label_accuracy": [(0, pytest.approx(result.measured.label_accuracy.value))],
        "result/epsilon": [(0, pytest.approx(result.published.statement.epsilon))],
    }
    settings = event_files.settings(version)
    assert settings["student"] == "supervised"
    assert settings["queries"] == QUERIES
    assert settings["query_strategy"] == "first"
    assert settings["num_teachers"] == TEACHERS
    assert "laplace_noisy_max" in settings["mechanism"]
    assert list(event_files.images(version)) == ["confusion_matrix"]


def test_other_votes_with_the_same_labels_show_the_same(finished, tmp_path):
    divided = RIGHT.copy()
    divided[:20] = (RIGHT[0] + np.arange(20)[:, None]) % 10
    run(tmp_path, divided)
    assert shown(tmp_path) == shown(finished[0])
    version = pathlib.Path("released", "logs", "versions", "1")
    assert event_files.settings(tmp_path / version) == event_files.settings(finished[0] / version)


def test_a_forest_has_no_epochs_and_leaves_its_result(tmp_path):
    run(tmp_path, RIGHT, model="random_forest")
    found = shown(tmp_path)
    assert found.keys() == {"versions/1"}
    assert found["versions/1"].keys() == {
        "result/student_accuracy",
        "result/label_accuracy",
        "result/epsilon",
    }


def test_the_next_student_is_the_next_row(tmp_path):
    for _ in range(2):
        run(tmp_path, RIGHT, model="random_forest")
    assert shown(tmp_path).keys() == {"versions/1", "versions/2"}


def test_no_path_of_this_machine_is_released(finished):
    folder, _ = finished
    files = [path for path in (folder / "released").rglob("*") if path.is_file()]
    assert any("tfevents" in path.name for path in files)
    for path in files:
        assert str(folder).encode() not in path.read_bytes(), path
