"""Neighboring private data by brute force: all teachers are retrained, and every bit is compared.

The number of steps is the default (`max_steps=None`). Shards are long enough compared with the
batches that it differs between data sets.
"""

import dataclasses
from collections.abc import Callable

import event_files
import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import Partition, PrivateExamples, owner_partition, random_partition
from pate_tf.models.encoder import Encoder, Part
from pate_tf.representations import contrastive
from pate_tf.teachers import teacher_kinds
from pate_tf.teachers.teacher_set import Teachers, logs_of
from pate_tf.teachers.teacher_settings import MIN_STEPS

NUM_TEACHERS = 6
SEED = 5
LONELY = 4  # the teacher with a single owner
KERAS, FOREST, LOGISTIC = (
    "architectures_for_tests:with_buffers",
    "random_forest",
    "classifiers_for_tests:scaled_logistic",
)


@dataclasses.dataclass(frozen=True)
class Record:
    owner: str
    image: np.ndarray
    label: int


def records_of(owner: str, number: int) -> list[Record]:
    random = np.random.default_rng(list(owner.encode()))
    images, _ = helpers.blob_images(number, seed=int(random.integers(2**31)))
    return [Record(owner, image, int(random.integers(3))) for image in images]


def teacher_of(owner: str) -> int:
    shares = owner_partition([owner] * NUM_TEACHERS, num_teachers=NUM_TEACHERS, seed=SEED)
    return int(shares.assignment[0])


def owners_without(teacher: int) -> list[str]:
    return [name for name in map("owner {}".format, range(60)) if teacher_of(name) != teacher]


OTHERS = owners_without(LONELY)
ONLY_ONE = next(name for name in map("hermit {}".format, range(99)) if teacher_of(name) == LONELY)
OWNERS = [*OTHERS[:24], ONLY_ONE]
NEW = OTHERS[30]
MOVING = next(name for name in OWNERS if teacher_of(name) not in (teacher_of(NEW), LONELY))


def all_records() -> list[Record]:
    """Returns about 80 records whose owners are in no order."""
    together = [
        record for place, owner in enumerate(OWNERS) for record in records_of(owner, 2 + place % 4)
    ]
    return [together[place] for place in np.random.default_rng(1).permutation(len(together))]


def without(owner: str, records: list[Record]) -> list[Record]:
    return [record for record in records if record.owner != owner]


def with_more(owner: str, number: int, records: list[Record]) -> list[Record]:
    """Inserts records of one owner between other records."""
    more = list(records)
    for place, record in enumerate(records_of(owner, number)):
        more.insert(3 + 11 * place, record)
    return more


def another(record: Record) -> Record:
    return Record(record.owner, 255 - record.image, (record.label + 1) % 3)


BASE = all_records()
# Changes of the owners, and the teachers that may change.
OWNER_CHANGES: dict[str, tuple[list[Record], tuple[str, ...]]] = {
    "an owner is added": (with_more(NEW, 5, BASE), (NEW,)),
    "an owner is removed": (without(OWNERS[0], BASE), (OWNERS[0],)),
    "the only owner of a teacher is removed": (without(ONLY_ONE, BASE), (ONLY_ONE,)),
    "an owner brings more records": (with_more(OWNERS[3], 9, BASE), (OWNERS[3],)),
    "an owner is replaced": (with_more(NEW, 5, without(MOVING, BASE)), (MOVING, NEW)),
}
# Changes of the records, and their positions in the longer list.
RECORD_CHANGES: dict[str, tuple[list[Record], tuple[int, ...]]] = {
    "a record is replaced": ([*BASE[:40], another(BASE[40]), *BASE[41:]], (40,)),
    "a record is appended": ([*BASE, another(BASE[0])], (len(BASE),)),
    "the last record is removed": (BASE[:-1], (len(BASE) - 1,)),
}


def examples(records: list[Record]) -> PrivateExamples:
    labels = np.array([record.label for record in records])
    return PrivateExamples(helpers.BLOBS, np.stack([one.image for one in records]), labels)


def shares_by_owner(records: list[Record]) -> Partition:
    owners = [record.owner for record in records]
    return owner_partition(owners, num_teachers=NUM_TEACHERS, seed=SEED)


def shares_by_position(records: list[Record]) -> Partition:
    return random_partition(num_records=len(records), num_teachers=NUM_TEACHERS, seed=SEED)


Learned = list[list[np.ndarray]]  # all learned values of each teacher
Learn = Callable[[list[Record], Partition], Learned]


def config(model: str, unit: str):
    return helpers.config(
        num_teachers=NUM_TEACHERS, model=model, max_steps=None, batch_size=2, seed=SEED, unit=unit
    )


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """Returns a network whose rounding could depend on the batch."""
    generator = np.random.default_rng(0)
    pool = Pool(helpers.BLOBS, generator.integers(0, 256, (40, 8, 8, 1)).astype(np.uint8))
    part = contrastive.ContrastivePart(helpers.BLOBS, 0)
    views = part._with_norm_one(tf.constant(pool.inputs, tf.float32))
    for along, view in zip(part.along, views, strict=True):
        along.find(view.numpy().mean(axis=0), np.cov(view.numpy().T, bias=True))
    return Encoder(helpers.BLOBS, [part], {})


@pytest.fixture(scope="module", params=[KERAS, FOREST, LOGISTIC, "ridge"])
def learn(request, encoder) -> Learn:
    model = request.param

    def learn(records: list[Record], shards: Partition) -> Learned:
        settings = config(model, shards.unit)
        work = teacher_kinds.TrainingJob(
            config=settings,
            examples=examples(records),
            partition=shards,
            encoder=encoder if model == "ridge" else None,
            num_processes=1,
        )
        kind = teacher_kinds.find_kind(settings.model, settings.dataset)
        trained = dict(kind.train(work, range(NUM_TEACHERS)))
        return [
            [*trained[teacher].arrays, trained[teacher].curves] for teacher in range(NUM_TEACHERS)
        ]

    return learn


@pytest.fixture(scope="module")
def learned_by_owner(learn) -> Learned:
    return learn(BASE, shares_by_owner(BASE))


@pytest.fixture(scope="module")
def learned_by_position(learn) -> Learned:
    return learn(BASE, shares_by_position(BASE))


def changed(before: Learned, after: Learned) -> set[int]:
    """Returns the teachers that differ in any bit."""

    def bits(arrays: list[np.ndarray]) -> list[tuple[object, ...]]:
        return [(array.dtype, array.shape, array.tobytes()) for array in arrays]

    pairs = enumerate(zip(before, after, strict=True))
    return {teacher for teacher, (one, other) in pairs if bits(one) != bits(other)}


class Place(Part):
    """Appends an input's place in the batch: like rounding, this feature depends on the place."""

    widths, learnt = (65,), ()

    def __call__(self, inputs):
        places = tf.cast(tf.range(tf.shape(inputs)[0])[:, tf.newaxis], tf.float32)
        return [tf.concat([tf.reshape(inputs, [-1, 64]), places], axis=1)]


@pytest.mark.parametrize("change", OWNER_CHANGES)
def test_features_of_an_owners_records_depend_on_no_other_owner(change):
    """Not even rounding differs: the contribution of an owner depends only on that owner."""
    encoder = Encoder(helpers.BLOBS, [Place()], {})

    def by_owner(records: list[Record]) -> dict[str, list[bytes]]:
        owners = np.array([record.owner for record in records])
        private = dataclasses.replace(examples(records), owners=owners)
        shares = shares_by_owner(records)
        actual: dict[str, list[bytes]] = {}
        work = teacher_kinds.TrainingJob(
            config=config("ridge", "owner"), examples=private, partition=shares, encoder=encoder
        )
        for teacher, features, labels in work.shards(range(NUM_TEACHERS)):
            own = shares.all_records()[teacher]
            np.testing.assert_array_equal(labels, private.labels[own])
            for record, row in zip(own, features, strict=True):
                actual.setdefault(owners[record], []).append(row.tobytes())
        return actual

    records, moved = OWNER_CHANGES[change]
    before, after = by_owner(BASE), by_owner(records)
    assert sum(map(len, after.values())) == len(records)
    differ = {owner for owner in before | after if before.get(owner) != after.get(owner)}
    assert differ == set(moved)


@pytest.mark.parametrize("change", OWNER_CHANGES)
def test_only_the_teachers_of_the_owners_who_come_or_go_change(learn, learned_by_owner, change):
    records, owners = OWNER_CHANGES[change]
    after = learn(records, shares_by_owner(records))
    assert changed(learned_by_owner, after) == {teacher_of(owner) for owner in owners}
    assert len({teacher_of(owner) for owner in owners}) == len(owners)


@pytest.mark.parametrize("change", RECORD_CHANGES)
def test_only_the_teacher_of_the_record_changes(learn, learned_by_position, change):
    records, (position,) = RECORD_CHANGES[change]
    longer = max(records, BASE, key=len)
    after = learn(records, shares_by_position(records))
    expected = {int(shares_by_position(longer).assignment[position])}
    assert changed(learned_by_position, after) == expected


def test_these_data_sets_differ_in_the_default_number_of_steps():
    # Otherwise the tests above would pass for teachers whose steps follow from the total number of
    # records.
    def steps(records: list[Record]) -> list[int]:
        shards = shares_by_owner(records).all_records()
        return [config(KERAS, "owner").num_steps(len(shard)) for shard in shards]

    base = steps(BASE)
    assert len(set(base)) > 2
    assert max(base) > MIN_STEPS

    def from_all(records: list[Record]) -> int:
        return -(-25 * len(records) // NUM_TEACHERS // 2)

    for records, _ in OWNER_CHANGES.values():
        assert from_all(records) != from_all(BASE)


def test_a_whole_run_with_a_teacher_without_records(tmp_path):
    records, _ = OWNER_CHANGES["the only owner of a teacher is removed"]
    owners = np.array([record.owner for record in records])
    private = dataclasses.replace(examples(records), owners=owners)
    teachers = Teachers(
        helpers.SMALL, num_teachers=NUM_TEACHERS, batch_size=2, seed=SEED, directory=tmp_path
    ).fit(private)
    assert (teachers.identified.config.max_steps, teachers.unit) == (None, "owner")
    images, _ = helpers.blob_images(30, seed=9)
    assert teachers.votes(images).shape == (NUM_TEACHERS, 30)
    written = event_files.scalars(logs_of(artifacts.RunDirectory(tmp_path)) / "highest")
    shards = shares_by_owner(records).all_records()
    longest = max(max(MIN_STEPS, -(-25 * len(shard) // 2)) for shard in shards)
    assert [step for step, _ in written["loss"]] == list(range(1, longest + 1))
    assert np.isfinite([value for _, value in written["loss"]]).all()
