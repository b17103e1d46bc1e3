"""Sums of several run folders, added up."""

import shutil
import warnings

import numpy as np
import pytest

import pate_tf
from pate_tf.core import artifacts
from pate_tf.ledger import EnsembleMismatch
from pate_tf.release.feature_sums import digest_of, sums_folder

RANDOM = np.random.default_rng(0)
POOL = RANDOM.uniform(size=(150, 4))
INPUTS, LABELS = RANDOM.uniform(size=(300, 4)).astype(np.float32), RANDOM.integers(0, 2, 300)


def data_of(inputs, labels, *, pool=POOL, owners=None) -> pate_tf.Data:
    return pate_tf.Data.from_arrays(
        inputs,
        labels,
        pool,
        num_classes=2,
        value_range=(0, 1),
        owners=owners,
        name="parts",
    )


def summed(folder, inputs, labels, **options) -> pate_tf.FeatureSums:
    data = data_of(inputs, labels, **options)
    return pate_tf.FeatureSums(directory=folder, representation="raw").fit(data.private, data.pool)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    root = tmp_path_factory.mktemp("parts")
    for place in range(3):
        summed(root / f"{place}", INPUTS[place::3], LABELS[place::3])
    return [root / f"{place}" for place in range(3)]


def test_they_are_those_of_all_records_in_any_order(parts, tmp_path):
    order = np.concatenate([np.arange(300)[place::3] for place in range(3)])
    whole = summed(tmp_path / "all", INPUTS[order], LABELS[order]).stored
    merged = pate_tf.FeatureSums.merge(parts, directory=tmp_path / "merged").stored
    np.testing.assert_array_equal(merged.table, whole.table)
    left = [{**one.description, "records": None} for one in (merged, whole)]
    assert left[0] == left[1] and merged.num_records == 300 and not merged.has_vectors
    pate_tf.FeatureSums.merge(parts[:2], directory=tmp_path / "two")
    again = pate_tf.FeatureSums.merge([parts[2], tmp_path / "two"], directory=tmp_path / "again")
    assert again.stored.digest == merged.digest
    # The same parts are not added again, others are refused.
    assert pate_tf.FeatureSums.merge(parts, directory=tmp_path / "again").stored.digest
    with pytest.raises(ValueError, match=r"holds .*feature sums"):
        pate_tf.FeatureSums.merge(parts[:2], directory=tmp_path / "again")


def test_whether_a_record_is_in_two_parts_changes_nothing_but_its_sum(parts, tmp_path):
    """Neither an error nor a warning nor a file tells; the sum moves as for any other record."""
    other = INPUTS[1::3].copy()
    other[9] = INPUTS[3]
    labels = LABELS[1::3].copy()
    labels[9] = LABELS[3]
    summed(tmp_path / "shares", other, labels)
    outcomes = []
    for second in (parts[1], tmp_path / "shares"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            merged = pate_tf.FeatureSums.merge(
                [parts[0], second], directory=tmp_path / f"merged {second.name}"
            )
        files = {path.relative_to(merged.directory) for path in merged.directory.rglob("*")}
        outcomes.append((merged.stored.num_records, files))
        moved = merged.stored.table - pate_tf.FeatureSums.load(parts[0]).stored.table
        np.testing.assert_array_equal(moved, pate_tf.FeatureSums.load(second).stored.table)
    assert outcomes[0] == outcomes[1]


def test_nothing_on_disk_is_a_digest_without_a_key(parts, tmp_path):
    """Whoever knows all records but one can't confirm a guess by what two folders hold."""
    twice = [summed(tmp_path / name, INPUTS[0::3], LABELS[0::3]).stored for name in "ab"]
    np.testing.assert_array_equal(twice[0].table, twice[1].table)
    assert twice[0].digest != twice[1].digest
    known = [one.description["records"] for one in twice]
    assert known[0] != known[1] and len(known[0]) == 1
    names = {path.name for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert not {name for name in names if name.endswith(".npy")} and "digest.key" in names


def test_records_are_recognised_in_any_order_and_by_label_and_owner(tmp_path):
    owners = np.arange(300) // 3
    order = np.random.default_rng(1).permutation(300)
    first = summed(tmp_path / "o", INPUTS, LABELS, owners=owners).stored
    same = summed(tmp_path / "o", INPUTS[order], LABELS[order], owners=owners[order].astype(str))
    assert same.stored.digest == first.digest
    for place in range(3):
        changed = [INPUTS.copy(), LABELS.copy(), owners.copy()]
        changed[place][7] = changed[place][200] if place != 1 else 1 - LABELS[7]
        with pytest.raises(ValueError, match=r"holds .*feature sums") as refused:
            summed(tmp_path / "o", *changed[:2], owners=changed[2])
        assert first.description["records"][0] not in str(refused.value)


def test_sums_of_owners_are_refused_whatever_they_hold(parts, tmp_path):
    for name, start in (("a", 0), ("b", 1_000)):
        summed(tmp_path / name, INPUTS, LABELS, owners=np.arange(300) // 3 + start)
    for folders in (["a", "b"], ["a", "a"], ["a", parts[0]], [parts[0], "b"]):
        with pytest.raises(ValueError, match=r"got sums of owners in .*in one pass"):
            pate_tf.FeatureSums.merge(
                [tmp_path / folder for folder in folders], directory=tmp_path / "merged"
            )
    assert not (tmp_path / "merged").exists()


def test_what_may_not_be_merged_is_one_line(parts, tmp_path):
    def refused(message, *folders):
        with pytest.raises(ValueError, match=message) as caught:
            pate_tf.FeatureSums.merge(folders, directory=tmp_path / "merged")
        assert "\n" not in str(caught.value) and not (tmp_path / "merged").exists()

    def changed(name, change):
        shutil.copytree(parts[0], tmp_path / name)
        change(sums_folder(artifacts.RunDirectory(tmp_path / name)))
        return tmp_path / name

    def described(**fields):
        def write(folder):
            description = artifacts.read_json(folder / "description.json")
            artifacts.write_json(folder / "description.json", {**description, **fields})

        return write

    def regrouped(*groups):
        def write(folder):
            stored = pate_tf.FeatureSums.load(folder.parents[1]).stored
            arrays = artifacts.read_arrays(folder / "sums.npz")
            arrays["groups"] = np.array(groups)
            digest = digest_of(stored.description, arrays, stored.encoder_digest)
            artifacts.write_arrays(folder / "sums.npz", arrays)
            described(digest=digest)(folder)

        return write

    def truncated(name):
        def cut(folder):
            content = (folder / name).read_bytes()
            (folder / name).write_bytes(content[: len(content) // 2])

        return cut

    refused("at least two", parts[0])
    refused("expected some in", parts[1], tmp_path / "nothing")
    refused("each part once", parts[0], parts[1], parts[0])
    refused("each part once", parts[0], changed("copy", lambda folder: None))
    pate_tf.FeatureSums.merge(parts[:2], directory=tmp_path / "both")
    refused("each part once", tmp_path / "both", parts[1])
    other = sums_folder(artifacts.RunDirectory(parts[2]))
    for name in ("sums.npz", "description.json"):
        swap = changed(f"swap {name}", lambda to, name=name: shutil.copy(other / name, to / name))
        refused("expected complete ones", swap, parts[1])
    for number, fields in enumerate(
        ({"unit": "owner"}, {"encoder": "0" * 64}, {"num_records": 1}, {"records": ["0" * 64]})
    ):
        refused("expected complete ones", changed(f"d{number}", described(**fields)), parts[1])
    for name in ("sums.npz", "description.json", "encoder/saved_model.pb"):
        refused("expected complete ones", changed(f"cut {name[:4]}", truncated(name)), parts[1])
    width = len(pate_tf.FeatureSums.load(parts[0]).stored.scale)
    refused("feature sums of one representation", parts[1], changed("g", regrouped(width - 1, 1)))
    refused("expected complete ones", changed("g1", regrouped(width + 1)), parts[1])
    refused("expected complete ones", changed("g2", regrouped(width + 1, -1)), parts[1])
    summed(tmp_path / "pool", INPUTS[0::3], LABELS[0::3], pool=POOL[:100])
    refused("feature sums of one dataset", parts[1], tmp_path / "pool")


def test_a_ledger_knows_the_sums_that_it_is_of(parts, tmp_path):
    """After a release other sums in the same folder are refused, with a digest that fits, too."""
    pool = data_of(INPUTS, LABELS).pool
    shutil.copytree(parts[0], tmp_path / "run")
    with pate_tf.Labeller(
        pate_tf.FeatureSums.load(tmp_path / "run"), epsilon=8.0, delta=1e-5
    ) as labeller:
        labeller.label(pool)
        spent = labeller.spent()
    own, other = (
        sums_folder(artifacts.RunDirectory(folder)) for folder in (tmp_path / "run", parts[1])
    )
    shutil.copytree(own, tmp_path / "right")
    stored = pate_tf.FeatureSums.load(tmp_path / "run").stored
    arrays = artifacts.read_arrays(own / "sums.npz")
    arrays["sums"][0, 0] += 1
    digest = digest_of(stored.description, arrays, stored.encoder_digest)
    for swap in ("edited", "swapped"):
        shutil.rmtree(own)
        shutil.copytree(other if swap == "swapped" else tmp_path / "right", own)
        if swap == "edited":
            artifacts.write_arrays(own / "sums.npz", arrays)
            artifacts.write_json(own / "description.json", {**stored.description, "digest": digest})
        with pytest.raises(EnsembleMismatch) as refused:
            pate_tf.Labeller(pate_tf.FeatureSums.load(tmp_path / "run"), epsilon=16.0, delta=1e-5)
        assert "\n" not in str(refused.value)
    shutil.rmtree(own)
    shutil.copytree(tmp_path / "right", own)
    with pate_tf.Labeller(
        pate_tf.FeatureSums.load(tmp_path / "run"), epsilon=8.0, delta=1e-5
    ) as labeller:
        labeller.label(pool)  # once more, of what was charged
        assert labeller.spent() == spent


def test_merged_sums_are_charged_to_the_source_of_the_parts_or_the_one_that_is_named(
    parts, tmp_path
):
    merged = pate_tf.FeatureSums.merge(parts, directory=tmp_path / "merged")
    assert merged.stored.source == pate_tf.FeatureSums.load(parts[0]).stored.source
    named = pate_tf.FeatureSums.merge(parts, directory=tmp_path / "named", name="others")
    assert named.stored.source.name == "others"
