"""Computes the tables of the page on many data holders."""

import numpy as np
import pytest
from code_blocks import DOCS

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.local import RandomisedResponse

PAGE = (DOCS / "explanation" / "silos.md").read_text()
EPSILONS = (0.5, 1.0, 2.0, 4.0)


def rows(heading: str) -> list[list[str]]:
    """Returns the cells of the table whose header begins with this text."""
    table = PAGE[PAGE.index(heading) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def survival(counts, randomiser, *, num_samples):
    """Returns Pr[plurality of the answers = plurality of the votes], [num_queries], by
    simulation.
    """
    generator = np.random.default_rng(0)
    channel = np.full((randomiser.num_classes, randomiser.num_classes), randomiser.other)
    np.fill_diagonal(channel, 1.0 - randomiser.other * (randomiser.num_classes - 1))
    correct = []
    for row in counts:
        answers = sum(
            generator.multinomial(int(number), channel[label], num_samples)
            for label, number in enumerate(row)
        )
        scores = answers + 0.5 * generator.random((num_samples, len(row)))
        correct.append(np.mean(np.argmax(scores, axis=1) == np.argmax(row)))
    return np.array(correct)


@pytest.mark.parametrize("row", rows("| silos | 90%"), ids=lambda row: row[0])
def test_the_table_of_what_survives(row):
    number = int(row[0].replace(",", ""))
    for share, cell in zip((0.9, 0.7, 0.5), row[1:], strict=True):
        top = round(share * number)
        others = [(number - top) // 9 + (j < (number - top) % 9) for j in range(9)]
        for epsilon, shown in zip(EPSILONS, cell.split(" / "), strict=True):
            law = RandomisedResponse(num_classes=10, epsilon=epsilon)
            (chance,) = survival(np.array([[top, *others]]), law, num_samples=4_000)
            # Both are simulated and rounded to two digits. The tolerance is six standard errors.
            error = np.sqrt(max(chance * (1 - chance) / 4_000, 0.001**2) + 0.0036**2)
            assert abs(float(shown) - chance) < 6 * error + 0.005


@pytest.mark.parametrize("row", rows("| epsilon of one"), ids=lambda row: row[0])
def test_the_table_of_what_answers_cost(row):
    for number, shown in zip((10, 100, 1_000), row[1:], strict=True):
        actual, _ = smallest_epsilon(
            {RandomisedResponse(num_classes=10, epsilon=float(row[0])): number}, 1e-5
        )
        assert float(shown.replace(",", "")) == pytest.approx(actual, abs=0.051)
