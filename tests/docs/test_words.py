"""The pages, docstrings and messages say things in the field's words."""

import io
import re
import tokenize
from collections.abc import Iterator

import pytest
from script_processes import REPOSITORY

# Words of our own for what the field has words for, and words that hide the subject.
BANNED = re.compile(
    r"\b(houses?|rooms?|roof|doors?|alike|look-?alikes?|likeness|paid|pays|bought|buys?"
    r"|whoever|nobody)\b",
    re.IGNORECASE,
)
# The story of how it came to be belongs into the notes and the changelog.
DOCS = REPOSITORY / "docs"
PAGES = sorted(
    path
    for path in (*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))
    if path.name != "results.md"
)
NAMED = {"pate_tf/data/uci.py"}  # a category of UCI's files


def in_code(source: str) -> Iterator[tuple[int, str]]:
    """Names, texts and comments of a module, with their lines; `_` parts words as a space does."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.OP, tokenize.NEWLINE, tokenize.NL, tokenize.INDENT):
            yield token.start[0], token.string.replace("_", " ")


def banned_in(lines: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    return [(number, found[0]) for number, text in lines for found in BANNED.finditer(text)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_page_uses_the_words_of_the_field(path):
    assert banned_in(enumerate(path.read_text().splitlines(), 1)) == []


@pytest.mark.parametrize("folder", ["pate_tf", "benchmarks", "tools"])
def test_the_code_uses_the_words_of_the_field(folder):
    found = {
        str(path.relative_to(REPOSITORY)): words
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if (words := banned_in(in_code(path.read_text())))
    }
    assert found.keys() - NAMED == set(), found
