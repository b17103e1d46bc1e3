"""A process that labels batches and writes down each answer it was given, as a student would.

Usage: labelling_child.py SENSITIVE_FOLDER RELEASED_FILE FIRST_QUERY LAST_QUERY BATCH [BUDGET]
"""

import json
import os
import pathlib
import sys

import ledger_helpers

from pate_tf.ledger import BudgetExceeded

if __name__ == "__main__":
    folder, released_file, first, last, batch = sys.argv[1:6]
    budget = float(sys.argv[6]) if len(sys.argv) > 6 else None
    with (
        ledger_helpers.open_ledger(pathlib.Path(folder), epsilon_budget=budget) as ledger,
        open(released_file, "a") as out,
    ):
        for start in range(int(first), int(last), int(batch)):
            try:
                released = ledger_helpers.label(ledger, start, min(start + int(batch), int(last)))
            except BudgetExceeded:
                break
            out.write(json.dumps(ledger_helpers.answers_of(released)) + "\n")
            out.flush()
            os.fsync(out.fileno())
