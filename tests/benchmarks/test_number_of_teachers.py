"""What noisy counts of many and of few teachers say of a pool."""

import pytest

from benchmarks import number_of_teachers
from pate_tf.representations import contrastive


def test_it_prints_a_row_for_each_number_and_one_for_feature_sums(capsys, monkeypatch):
    monkeypatch.setattr(contrastive, "STEPS", 20)
    arguments = ["--dataset=digits", "--numbers", "20", "40", "--epsilons", "0.5", "50"]
    number_of_teachers.main([*arguments, "--draws=2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "| teachers | one is right | epsilon 0.5 | epsilon 50 |"
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[3:]]
    assert [row[0] for row in found] == ["20", "40", "class sums"]
    for few, many in (row[2:] for row in found):  # less noise, more right
        assert float(few.split("%")[0]) < float(many.split("%")[0])
    assert all(float(row[-1].split("%")[0]) > 70 for row in found)


def test_noise_hides_one_record_and_not_a_share_of_the_teachers():
    sigmas = {
        number_of_teachers.sigma_of(0.1, num_teachers=some, num_classes=10, num_queries=200)
        for some in (1_000, 4_000)
    }
    assert len(sigmas) == 1
    assert sigmas.pop() == pytest.approx(615, rel=0.01)


def test_without_draws_nothing_is_measured():
    with pytest.raises(ValueError, match="draws: expected at least 1, got 0"):
        number_of_teachers.main(["--dataset=digits", "--draws=0"])
