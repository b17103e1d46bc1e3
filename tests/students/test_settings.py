"""A student's settings with all gaps filled."""

import pytest

from pate_tf.core.dataset import Dataset
from pate_tf.data import catalogue as data
from pate_tf.students.config import StudentSettings

PUBLIC = data.load_public("digits")


def test_a_students_settings_have_defaults_of_their_own():
    from pate_tf.students.config import complete
    from pate_tf.students.kinds import kind_of, names

    for name, student in ((name, kind_of(name)) for name in names()):
        if name != "gan":  # its images are too small here
            found = complete(StudentSettings(student=name), PUBLIC.dataset)
            assert found.max_steps == student.max_steps
            assert found.model == student.default_model(PUBLIC.dataset)
    said = complete(StudentSettings(model="mlp", max_steps=3, seed=4), PUBLIC.dataset)
    assert (said.model, said.max_steps, said.seed) == ("mlp", 3, 4)
    with pytest.raises(ValueError, match="student: expected auto, distillation"):
        complete(StudentSettings(student="nosuch"), PUBLIC.dataset)


def test_labels_of_a_whole_table_are_followed_closely_unless_the_user_says_otherwise():
    from pate_tf.students.config import complete
    from pate_tf.students.kinds import kind_of

    own = kind_of("supervised")
    a_table = Dataset(
        name="t",
        kind="tabular",
        input_shape=(3,),
        value_range=(0.0, 1.0),
        num_classes=2,
        pool_size=9,
    )
    settings = StudentSettings(learning_rate=0.01)
    few = complete(settings, a_table)
    assert (few.max_steps, few.batch_size, few.learning_rate) == (1_000, 64, 0.01)
    whole = complete(settings, a_table, labels_whole_pool=True)
    assert {**own.of_whole_table, "learning_rate": 0.01} == {
        name: getattr(whole, name) for name in own.of_whole_table
    }
    assert whole.max_steps > few.max_steps and whole.batch_size > few.batch_size
    assert complete(settings, PUBLIC.dataset, labels_whole_pool=True) == complete(
        settings, PUBLIC.dataset
    )
