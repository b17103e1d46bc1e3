"""The plots: what they show, where they go, and that they need no TensorFlow."""

import os
import stat
import struct
import subprocess
import sys

import numpy as np
import pytest
from analysis_helpers import DELTA, REPOSITORY, golden_counts, random_labels
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)
from pate_tf.analysis import plots as analysis_figures
from pate_tf.analysis.accounting import AnalysisConfig, analyse
from pate_tf.analysis.votes import AnsweredVotes, VoteSource
from pate_tf.core import artifacts
from pate_tf.core.sensitive import VoteCounts, Votes

LAPLACE = LaplaceNoisyMax(gamma=0.05)
CONFIG = AnalysisConfig(delta=DELTA)
PNG = b"\x89PNG\r\n\x1a\n"


def source_of(*groups, labels=None):
    answered = tuple(AnsweredVotes(*group) for group in groups)
    charges = {
        group.mechanism: group.counts.num_queries + group.num_unanswered for group in answered
    }
    return VoteSource(groups=answered, num_charged=charges, identity=str, labels=labels)


def label_source(num_teachers=30, num_queries=25):
    votes = Votes(random_labels(num_teachers, num_queries), 10)
    return source_of((LAPLACE, votes.counts()), labels=votes)


def lines_of(figure):
    (axes,) = figure.axes
    return {line.get_label(): np.asarray(line.get_xydata()) for line in axes.lines}


def pictures_in(path):
    """Returns the pictures of an event file by tag; checks every checksum."""
    content, found = path.read_bytes(), {}
    while content:
        header, (length,) = content[:8], struct.unpack("<Q", content[:8])
        body = content[12 : 12 + length]
        assert struct.unpack("<I", content[8:12])[0] == masked_crc32c(header)
        assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked_crc32c(body)
        event = event_pb2.Event.FromString(body)
        found |= {value.tag: value.image.encoded_image_string for value in event.summary.value}
        content = content[16 + length :]
    return found


def test_files_are_apart_and_private(tmp_path):
    before = os.umask(0)
    try:
        paths = analysis_figures.draw(artifacts.RunDirectory(tmp_path), label_source(), CONFIG)
    finally:
        os.umask(before)
    names = sorted(str(path.relative_to(tmp_path)) for path in paths)
    assert names == [
        "released/cost_by_gap_1.png",
        "released/epsilon_data_independent.png",
        "sensitive/epsilon_by_queries.png",
        "sensitive/gap_by_teachers.png",
    ]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    assert stat.S_IMODE((tmp_path / "sensitive").stat().st_mode) == 0o700
    for path in (tmp_path / "sensitive").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for half in ("released", "sensitive"):
        pictures = pictures_in(tmp_path / half / analysis_figures.EVENTS)
        expected = {path.stem: path.read_bytes() for path in paths if path.parent.name == half}
        assert pictures == expected


def test_without_votes_only_the_data_independent_plot_is_drawn(tmp_path):
    source = VoteSource(groups=None, num_charged={LAPLACE: 100}, identity=str)
    (path,) = analysis_figures.draw(artifacts.RunDirectory(tmp_path), source, CONFIG)
    assert path == tmp_path / "released/epsilon_data_independent.png"


def test_every_figure_is_labelled_and_marked():
    source = label_source()
    figures = {
        analysis_figures.data_independent_figure(source.num_charged, CONFIG): "publishable",
        analysis_figures.bounds_figure(source, CONFIG): "SENSITIVE, do not publish",
        analysis_figures.gap_figure(source.groups[0]): "publishable",
        analysis_figures.teachers_figure(source.labels): "SENSITIVE, do not publish",
    }
    for figure, mark in figures.items():
        (axes,) = figure.axes
        assert figure.get_supxlabel() == mark
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert axes.get_title(loc="left")
        assert len(axes.get_lines()) == 1 or axes.get_legend() is not None


def test_curves_end_at_the_numbers_of_the_analysis():
    source = source_of(
        (LAPLACE, VoteCounts(golden_counts("H1", 37))),
        (LaplaceNoisyMax(gamma=0.1), VoteCounts(golden_counts("H2", 9))),
    )
    analysis = analyse(source, CONFIG)
    curves = lines_of(analysis_figures.bounds_figure(source, CONFIG))
    assert len(curves) == 3
    for bound, guarantee in analysis.bounds.items():
        (curve,) = [curve for label, curve in curves.items() if label.startswith(f"{bound} (")]
        assert curve[-1] == pytest.approx([46.0, guarantee.epsilon], rel=1e-9)
        assert (np.diff(curve, axis=0) > 0.0).all()
    figure = analysis_figures.data_independent_figure(source.num_charged, CONFIG)
    (curve,) = lines_of(figure).values()
    assert curve[-1] == pytest.approx([46.0, analysis.data_independent.epsilon], rel=1e-9)


def test_withheld_queries_are_on_the_curve():
    mechanism = ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=60.0, sigma=30.0)
    source = source_of((mechanism, VoteCounts(golden_counts("H1", 30)), 41))
    curves = lines_of(analysis_figures.bounds_figure(source, CONFIG))
    expected = analyse(source, CONFIG).bounds["two_sided"].epsilon
    assert curves["two_sided (both directions)"][-1] == pytest.approx([71.0, expected], rel=1e-9)


@pytest.mark.parametrize("mechanism", [LAPLACE, GaussianNoisyMax(sigma=40.0)])
def test_the_cost_of_a_gap_reads_no_vote(mechanism):
    figures = [
        analysis_figures.gap_figure(AnsweredVotes(mechanism, VoteCounts(golden_counts(name, 2))))
        for name in ("H1", "H3")
    ]
    first, second = map(lines_of, figures)
    assert set(first) == set(second)
    assert len(first) == len(mechanism.bounds) + 1
    for label, curve in first.items():
        np.testing.assert_array_equal(curve, second[label])
    exact = first["exact (both directions)"][:, 1]
    assert (exact <= first["two_sided (both directions)"][:, 1] * (1.0 + 1e-8)).all()


def test_agreement_of_known_teachers():
    # Two say 0, then one says 1, then two say 0.
    votes = Votes(np.array([[0, 0], [0, 0], [1, 1], [0, 0], [0, 0]]), 3)
    curve = lines_of(analysis_figures.teachers_figure(votes))["mean"]
    assert dict(curve.tolist()) == pytest.approx({1: 1.0, 2: 1.0, 3: 1 / 3, 4: 0.5, 5: 0.6})


@pytest.mark.parametrize("num_classes", [1, 2])
def test_one_teacher_and_few_classes_can_be_drawn(tmp_path, num_classes):
    votes = Votes(np.zeros((1, 3), int), num_classes)
    source = source_of((LAPLACE, votes.counts()), labels=votes)
    assert len(analysis_figures.draw(artifacts.RunDirectory(tmp_path), source, CONFIG)) == 4


def test_drawing_needs_no_tensorflow(tmp_path):
    np.save(tmp_path / "labels.npy", random_labels(20, 15))
    code = (
        "import runpy, sys\n"
        "sys.argv = sys.argv[1:]\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print('tensorflow' in sys.modules, 'matplotlib' in sys.modules)\n"
    )
    ended = subprocess.run(
        [
            *(sys.executable, "-c", code, str(REPOSITORY / "analysis.py")),
            *("--counts_file=labels.npy", "--release=none", "--plots=plots"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout.endswith("False True\n")
    assert "plots/sensitive/gap_by_teachers.png" in ended.stdout
