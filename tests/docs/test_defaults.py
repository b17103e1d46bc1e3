"""Defaults in help, docstrings and pages are the defaults of the code."""

import pytest
from code_blocks import DOCS

from pate_tf.core.dataset import Dataset
from pate_tf.models.architectures import default_model
from pate_tf.planning.choose import DEFAULT_NUM_QUERIES
from pate_tf.planning.comparison import ROUNDS, ROUNDS_RATIO
from pate_tf.representations.catalogue import default_of_sums, default_of_teachers
from pate_tf.selective_sgd.training_settings import LAST_RATE, TrainingSettings
from pate_tf.teachers.run_folder import DEFAULT_NUM_TEACHERS, RECORDS_PER_CLASS, RECORDS_PER_TEACHER
from pate_tf.teachers.teacher_set import IMAGE_MODEL
from pate_tf.teachers.teacher_settings import BATCH_SIZE, LEARNING_RATE, MIN_STEPS, PASSES


def dataset(kind: str, *shape: int) -> Dataset:
    return Dataset(
        name=kind, kind=kind, input_shape=shape, value_range=(0.0, 1.0), num_classes=2, pool_size=9
    )


SGD = TrainingSettings()
IMAGES, TABLE = dataset("image", 8, 8, 1), dataset("tabular", 2)


# A page, and a sentence of it with the value from the code.
@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (
            "explanation/feature_sums.md",
            f"exceeds {ROUNDS_RATIO:g} times the noise, "
            f"{'sixteen' if ROUNDS == 16 else ROUNDS} rounds",
        ),
        (
            "how-to/own_model.md",
            f"`{IMAGE_MODEL}` for images and `{default_model(TABLE)}` for all other inputs",
        ),
        ("how-to/own_model.md", f"the default for images is the network `{default_model(IMAGES)}`"),
        (
            "how-to/first_release.md",
            f"{PASSES} passes over the teacher's own records, at least {MIN_STEPS} steps",
        ),
        ("how-to/first_release.md", f"`--batch_size={BATCH_SIZE}`"),
        ("how-to/first_release.md", f"`--learning_rate={LEARNING_RATE}`"),
        ("how-to/first_release.md", f"`--nb_teachers={DEFAULT_NUM_TEACHERS}`"),
        ("how-to/first_release.md", f"the teachers label, by default {DEFAULT_NUM_QUERIES}."),
        (
            "how-to/small_teachers.md",
            f"| `{default_of_teachers(IMAGES)}` | gray images (the default)",
        ),
        (
            "how-to/small_teachers.md",
            f"| `{default_of_teachers(TABLE)}` | tables (the default of teachers",
        ),
        (
            "how-to/small_teachers.md",
            f"| `{default_of_sums(TABLE)}` | tables (the default of feature sums",
        ),
        (
            "how-to/small_teachers.md",
            f"one teacher for every {RECORDS_PER_TEACHER} records, or for every "
            f"{RECORDS_PER_CLASS} records",
        ),
        ("how-to/shared_training.md", f"| theta_u | {SGD.upload:g} |"),
        (
            "how-to/shared_training.md",
            f"SGD | {SGD.learning_rate:g}, decreasing to {SGD.learning_rate * LAST_RATE:g}; "
            f"{SGD.batch_size} |",
        ),
    ],
)
def test_a_page_names_the_default_of_the_code(page, sentence):
    assert sentence in " ".join((DOCS / page).read_text().split())
