"""Teachers that spread their labels over the pool."""

import numpy as np

from benchmarks import semi_supervised
from pate_tf.representations import contrastive
from pate_tf.representations.label_propagation import influence, neighbour_graph

RANDOM = np.random.default_rng(0)
CENTRES = 10.0 * np.eye(3)
TRUTH = np.repeat(np.arange(3), 20)
POOL = (CENTRES[TRUTH] + RANDOM.normal(size=(60, 3))).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 1, 2, 2])
RECORDS = (CENTRES[LABELS] + RANDOM.normal(size=(8, 3))).astype(np.float32)
SHARES = [np.array([0, 1, 2]), np.array([3, 4, 6]), np.array([5, 7])]


def votes(labels):
    joined = semi_supervised.joined_to_pool([RECORDS, 2 * RECORDS], [POOL, 2 * POOL])
    assert np.allclose(joined.sum(axis=1), 1.0)
    reach = joined @ influence(neighbour_graph([POOL]), np.arange(60))
    return semi_supervised.votes_by_spreading(reach, labels, SHARES, 3)


def test_a_label_reaches_what_looks_alike_and_no_other_teacher():
    found = votes(LABELS)
    assert (found[:2] == TRUTH).all()  # one record of a class names all of its twenty
    assert (found[2][20:] == TRUTH[20:]).all()  # and the third was not told of class 0
    changed = votes(np.where(np.arange(8) == 5, 0, LABELS))
    assert (changed[:2] == found[:2]).all()
    assert (changed[2] != found[2]).any()


def test_it_prints_a_row_for_each_kind(capsys, monkeypatch):
    monkeypatch.setattr(contrastive, "STEPS", 20)
    semi_supervised.main(["--dataset=digits", "--nb_teachers=20", "--queries=20", "--seeds=2"])
    rows = capsys.readouterr().out.splitlines()[3:]
    kinds = [row.split("|")[1].strip() for row in rows]
    assert kinds[0] == "ridge"
    assert kinds[1].endswith("neighbours")
    assert kinds[2] == "label spreading"
    for row in rows:
        one, most = (float(cell.strip(" %")) for cell in row.split("|")[2:4])
        assert 30 < one < 100
        assert 70 < most <= 100
