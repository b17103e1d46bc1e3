"""Rows of mechanisms from earlier versions keep their cost.

Rows and epsilons come from the last version that drew them (commit dfcb023e).
"""

import json
import math

import numpy as np
import pytest
from ledger_helpers import DELTA, label, open_ledger

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import several_teachers_epsilon, smallest_epsilon
from pate_tf.accounting.mechanisms import GaussianNoisyMax, LaplaceNoisyMax, base
from pate_tf.accounting.mechanisms.retired import RETIRED
from pate_tf.core import artifacts
from pate_tf.ledger import Ledger
from pate_tf.ledger.ledger_file import canonical_json
from pate_tf.release.votes import VOTES

LAPLACE, GAUSSIAN = LaplaceNoisyMax(gamma=0.05), GaussianNoisyMax(sigma=40.0)
GATE, BOTH, FLIP = ROWS = (
    '{"charge":{"delta":3e-06,"epsilon":0.25,"name":"stability_gate"},"number":1}',
    '{"charge":{"delta":2e-06,"epsilon":0.1,"most_queries":100,'
    '"name":"stability_gate_or_histogram","sigma":1000.0},"number":1}',
    '{"charge":{"gamma":0.05,"name":"permute_and_flip"},"number":30}',
)


def charged(*rows, **others):
    charges = {}
    for row in rows:
        fields = json.loads(row)
        charges[charge_from_dict(fields["charge"])] = fields["number"]
    return charges


@pytest.mark.parametrize(
    ("rows", "others", "one", "replaced", "three"),
    [
        ([GATE], {}, 0.2499875486999956, 0.49999494341841483, math.inf),
        ([BOTH], {}, 0.09998476131107456, 0.1999894702711488, 0.29999417399253353),
        ([FLIP], {}, 2.1101544264815875, 4.564670362287169, 7.17573475437694),
        (
            [GATE, BOTH, FLIP],
            {LaplaceNoisyMax(gamma=0.05): 20},
            2.7822802709298684,
            *[math.inf] * 2,
        ),
        (
            [GATE],
            {GaussianNoisyMax(sigma=40.0): 100},
            1.4022144475072775,
            3.555333819070375,
            math.inf,
        ),
    ],
)
def test_rows_of_earlier_versions_compose_to_the_same_epsilon(rows, others, one, replaced, three):
    charges = {**charged(*rows), **others}
    assert smallest_epsilon(charges, DELTA)[0] == pytest.approx(one, rel=1e-12)
    assert several_teachers_epsilon(charges, delta=DELTA) == pytest.approx(replaced, rel=1e-12)
    of_three = several_teachers_epsilon(charges, delta=DELTA, num_teachers=3)
    assert of_three == pytest.approx(three, rel=1e-12)
    assert smallest_epsilon(charged(FLIP), 0.0) == (3.0, None)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_written_again_as_it_was_and_nothing_can_draw_it(tmp_path, row):
    ((charge, number),) = charged(row).items()
    assert canonical_json(charge.to_dict()) == canonical_json(json.loads(row)["charge"])
    assert charge.name in charge.several(number) and charge.name in charge.in_words()
    assert charge.name not in base.MECHANISMS
    with open_ledger(tmp_path / "sensitive") as ledger:
        with pytest.raises(ValueError, match=f"must draw noise, but {charge.name} does not"):
            label(ledger, 0, 3, mechanism=charge)
        assert not ledger.charges


def ledger_of_an_earlier_version(folder):
    """Returns a ledger with a failed gate, labels of permute-and-flip and their votes."""
    with open_ledger(folder) as ledger, ledger.exclusive():
        for place, row in enumerate((GATE, FLIP)):
            ((charge, number),) = charged(row).items()
            queries = [bytes([place, query]) * 8 for query in range(number)]
            with ledger.debited(charge, queries, secure_noise=True) as debit:
                labels = [0 if row is FLIP else None] * number
                path = folder / VOTES / f"{debit:09d}.npz"
                artifacts.make_sensitive_folder(path.parent)
                counts = np.tile([90, 85, 75], (number, 1))
                answered = np.full(number, row is FLIP)
                artifacts.write_arrays(path, {"counts": counts, "answered": answered}, private=True)
                ledger.store_answers(debit, queries, labels, None)


def test_a_ledger_of_an_earlier_version_is_analysed_and_goes_on(tmp_path):
    from pate_tf.analysis import analyse
    from pate_tf.analysis.vote_sources import read_ledgers

    folder = tmp_path / "sensitive"
    ledger_of_an_earlier_version(folder)
    with Ledger.read(folder) as ledger:
        analysis = analyse(read_ledgers([ledger], votes_needed=True))
        due, _ = smallest_epsilon(charged(GATE, FLIP), DELTA)
        assert ledger.spent().epsilon == analysis.epsilon == due
    assert analysis.bounds == {} and (analysis.num_queries, analysis.num_answered) == (31, 30)
    assert {charge.name for charge in analysis.num_charged} == {
        "stability_gate",
        "permute_and_flip",
    }
    with open_ledger(folder) as ledger:
        released = label(ledger, 0, 5, mechanism=GAUSSIAN)
        # The failed gate led to these labels.
        assert released.cost.before == tuple(charged(GATE).items())
        due, _ = smallest_epsilon({**charged(GATE), GAUSSIAN: 5}, DELTA)
        assert released.cost.epsilon == due
    assert set(RETIRED) == {json.loads(row)["charge"]["name"] for row in ROWS}
