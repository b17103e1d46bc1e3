"""The page on many holders: its program runs as it is printed, its tables are computed."""

import json
import re

import numpy as np
import pytest
from code_blocks import DOCS, blocks
from script_processes import run_script

from benchmarks.silos import survival
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.local import RandomisedResponse, SecureHistogram
from pate_tf.silos import Roster
from pate_tf.statement.check import check_statement, opened_stores

PAGES = ("explanation/silos.md", "notes/silos.md")
PAGE = "\n".join((DOCS / page).read_text() for page in PAGES)
EPSILONS = (0.5, 1.0, 2.0, 4.0)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose head begins so."""
    table = PAGE[PAGE.index(heading) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


FILES = {
    block.marker.removeprefix("file: "): block.text
    for block in blocks("tutorials/silos.md")
    if block.marker.startswith("file: ")
}


def test_the_files_of_five_silos_are_what_the_commands_take(tmp_path):
    (tmp_path / "roster.toml").write_text(FILES["roster.toml"])
    assert Roster.read(tmp_path / "roster.toml").names == ("silo-1",)
    (tmp_path / "five_files.py").write_text(FILES["five_files.py"])
    assert run_script(str(tmp_path / "five_files.py"), folder=tmp_path).code == 0
    for number in range(1, 6):
        arrays = np.load(tmp_path / f"silo-{number}.npz")
        assert len(arrays["inputs"]) == len(arrays["labels"]) == 240


@pytest.mark.parametrize(
    ("sigma", "number", "sentence"),
    [
        (1.0, 120, r"takes sigma 1, which costs each silo epsilon ([\d.]+)\."),
        (40.0, 100, r"sigma 40 and 100 queries cost\s([\d.]+) at delta 1e-6"),
    ],
)
def test_what_the_page_says_of_noise_and_epsilon(sigma, number, sentence):
    found, _ = smallest_epsilon(
        {SecureHistogram(sigma=sigma, num_parties=4, threshold=1): number}, 1e-6
    )
    shown = float(re.search(sentence, PAGE)[1])
    assert found <= shown < 1.01 * found


@pytest.mark.long  # labels of images take a second pass, which trains a network
def test_the_program_runs_as_it_is_printed(tmp_path):
    (tmp_path / "five_silos.py").write_text(FILES["five_silos.py"])
    ended = run_script(str(tmp_path / "five_silos.py"), folder=tmp_path)
    assert ended.code == 0, ended.err
    assert float(re.search(r"right: ([\d.]+)", ended.out)[1]) > 0.5
    fields = json.loads((tmp_path / "released" / "privacy_statement.json").read_text())
    assert len(fields["silos"]) == 5 and fields["student_digest"]
    assert fields["unit"] == "record" and fields["epsilon"] <= 1.0
    with opened_stores([tmp_path / "silos" / "hospital-0" / "account"]) as stores:
        check_statement(fields, *stores)
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert "hospital-4" in page and "The coordinator saw" in page
    assert (tmp_path / "silos" / "hospital-0" / "account").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("row", rows("| silos | 90%"), ids=lambda row: row[0])
def test_the_table_of_what_survives(row):
    number = int(row[0].replace(",", ""))
    for share, cell in zip((0.9, 0.7, 0.5), row[1:], strict=True):
        top = round(share * number)
        others = [(number - top) // 9 + (j < (number - top) % 9) for j in range(9)]
        for epsilon, shown in zip(EPSILONS, cell.split(" / "), strict=True):
            law = RandomisedResponse(num_classes=10, epsilon=epsilon)
            (chance,) = survival(np.array([[top, *others]]), law, num_samples=4_000)
            # Both are simulated; rounded to two digits. Six standard errors.
            error = np.sqrt(max(chance * (1 - chance) / 4_000, 0.001**2) + 0.0036**2)
            assert abs(float(shown) - chance) < 6 * error + 0.005


@pytest.mark.parametrize("row", rows("| queries | sigma"), ids=lambda row: " ".join(row[:2]))
def test_the_epsilons_of_secure_aggregation_as_measured(row):
    number, sigma, shown = int(row[0].replace(",", "")), float(row[1]), float(row[2])
    found, _ = smallest_epsilon(
        {SecureHistogram(sigma=sigma, num_parties=4, threshold=1): number}, 1e-5
    )
    assert found <= shown < found + 0.01


def test_what_was_measured_of_randomised_response_is_within_its_error():
    measured = rows("| silos | epsilon of one answer")
    assert len(measured) == 12
    for row in measured:
        expected, error = map(float, row[3].split(" ± "))
        assert abs(float(row[2]) - expected) < 3 * error


@pytest.mark.parametrize("row", rows("| epsilon of one"), ids=lambda row: row[0])
def test_the_table_of_what_answers_cost(row):
    for number, shown in zip((10, 100, 1_000), row[1:], strict=True):
        found, _ = smallest_epsilon(
            {RandomisedResponse(num_classes=10, epsilon=float(row[0])): number}, 1e-5
        )
        assert float(shown.replace(",", "")) == pytest.approx(found, abs=0.051)
