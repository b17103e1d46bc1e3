"""Plain English: counts of odd phrases never rise, and messages do not end in "got none" or alike.

`python tests/test_english.py` lowers the counts in `english.json`.
"""

import ast
import importlib.util
import json
import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNTS = ROOT / "tests" / "english.json"
SHARED = pathlib.Path(os.environ.get("PATE_TF_SHARED", ROOT.parent / "shared"))
COUNTER = SHARED / "tools" / "english.py"
VAGUE = re.compile(r"\bgot (none|others|another|one|neither|both|nothing)(?=$|[.;:])")


def number_of_phrases(place: str) -> int:
    """Returns the number of odd phrases in the prose of a file or folder."""
    spec = importlib.util.spec_from_file_location("english", COUNTER)
    english = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(english)
    return sum(
        len(re.findall(pattern, text, re.MULTILINE))
        for _, text in english.texts(ROOT / place)
        for pattern in english.PHRASES.values()
    )


@pytest.mark.skipif(not COUNTER.is_file(), reason=f"no counter of phrases at {COUNTER}")
@pytest.mark.parametrize(("place", "most"), json.loads(COUNTS.read_text()).items())
def test_odd_phrases_do_not_come_back(place, most):
    assert number_of_phrases(place) <= most, f"run `python {COUNTER} --show alone {place}`"


def texts_of_errors():
    """Yields the text of each message in a `raise` statement, with {} for values."""
    for path in (ROOT / "pate_tf").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        raised = [node for node in nodes if isinstance(node, ast.Raise)]
        for node in (each for statement in raised for each in ast.walk(statement)):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            values = [getattr(part, "value", "") for part in parts]
            yield "".join(value if isinstance(value, str) else "{}" for value in values)


def test_messages_name_the_value():
    assert not [text for text in texts_of_errors() if VAGUE.search(text)]


if __name__ == "__main__":
    limits = json.loads(COUNTS.read_text())
    lower = {place: min(most, number_of_phrases(place)) for place, most in limits.items()}
    COUNTS.write_text(json.dumps(lower, indent=1) + "\n")
