from pate_tf.data.datasets import DIGITS
from pate_tf.teachers.teacher_settings import TeacherConfig

FIELDS = {
    "dataset": DIGITS,
    "num_teachers": 4,
    "model": "cnn",
    "max_steps": 10,
    "batch_size": 8,
    "learning_rate": 0.005,
    "seed": 1,
}


def test_steps_follow_from_the_shard_alone():
    config = TeacherConfig(**{**FIELDS, "max_steps": None, "batch_size": 40})
    steps = [config.num_steps(num_records) for num_records in (0, 1, 240, 241, 600, 601)]
    assert steps == [0, 150, 150, 151, 375, 376]
    explicit = TeacherConfig(**FIELDS)
    assert [explicit.num_steps(num_records) for num_records in (0, 1, 601)] == [0, 10, 10]
