"""Everything that the library cites as proved is stated and proved on a page of the guide.

A statement is a heading or a bold beginning of a line, `### Theorem T1 (...)` or `**Lemma 2.**`.
Its proof begins with `Proof` before the next statement. Docstrings and comments cite it by name,
with the page (`docs/proofs/theory.md, Theorem T1`) or without. A plain number may come from the
literature (`Papernot et al. 2017, Theorem 3`), if the same sentence names the source.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import norm
from script_processes import REPOSITORY

from pate_tf.accounting.mechanisms import ConfidentGaussianNoisyMax, LaplaceNoisyMax
from pate_tf.accounting.moments import exact_costs

DOCS = REPOSITORY / "docs"
PROOFS = DOCS / "proofs"

KIND = "Theorem|Lemma|Proposition|Corollary"
PLURAL = {"Theorems": "Theorem", "Lemmas": "Lemma", "Propositions": "Proposition"}
NAME = r"(?:[A-Z]{1,2}\d*|\d+(?:\.\d+)*)\b(?!\w)"
STATEMENT = re.compile(rf"^(?:#+ |\*\*|- \*\*)(({KIND}) ({NAME}))", re.MULTILINE)
HEADING = re.compile(r"^#+ ", re.MULTILINE)
PROOF = re.compile(r"^[ *_]*Proof\b", re.MULTILINE)
CITATION = re.compile(
    rf"\b({KIND}|Theorems|Lemmas|Propositions) ({NAME}(?:(?:, | and | or | to ){NAME})*)"
)
PAGE = re.compile(r"(?<![\w/.-])((?:docs/)?((?:[\w-]+/)*[\w-]+)\.md)\b(, [^.;:)]*)?")
LITERATURE = re.compile(r"\b(19|20)\d\d\b|\b[Aa]rXiv \d|\bof the (?:PATE )?paper\b")
SECTION = re.compile(r"\b(?:section|part|Part) [A-Z0-9]")


def statements(page: str) -> set[str]:
    """Returns the names of the statements of a page that have a proof."""
    starts = list(STATEMENT.finditer(page))
    borders = sorted({match.start() for match in [*starts, *HEADING.finditer(page)]})
    borders.append(len(page))
    proved = set()
    for match in starts:
        end = next(border for border in borders if border > match.start())
        if PROOF.search(page, match.end(), end):
            proved.add(match[1])
    return proved


def names(kind: str, listed: str) -> Iterator[str]:
    """Returns the statements of `Theorems T1 to T3` or `Lemma 2 and 3`, one by one."""
    kind = PLURAL.get(kind, kind)
    first, *others = re.split(r"(, | and | or | to )", listed)
    yield f"{kind} {first}"
    for joint, name in zip(others[::2], others[1::2], strict=True):
        if joint == " to ":
            letters, low = re.fullmatch(r"([A-Z]*)(\d+)", first).groups()
            high = re.fullmatch(rf"{letters}(\d+)", name)[1]
            yield from (f"{kind} {letters}{number}" for number in range(int(low) + 1, int(high)))
        first = name
        yield f"{kind} {name}"


def unproved(text: str, pages: dict[str, set[str]]) -> list[str]:
    """Returns the statements that a docstring or comment cites, but no page of `pages` proves."""
    words = " ".join(text.split())
    known = set().union(*pages.values())
    actual = []
    for sentence in re.split(r"(?<=[.;:])(?<!et al\.) (?=[A-Z`|])", words):
        for citation in CITATION.finditer(sentence):
            for name in names(*citation.groups()):
                is_number = name.rpartition(" ")[2][0].isdigit()
                if name not in known and not (is_number and LITERATURE.search(sentence)):
                    actual.append(name)
        for path, page, cited in PAGE.findall(sentence):
            if (path.startswith("docs/") and page not in pages) or SECTION.search(cited):
                actual.append(path)
            for citation in CITATION.finditer(cited):
                on_page = pages.get(page, set())
                actual += [name for name in names(*citation.groups()) if name not in on_page]
    return actual


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Returns docstrings and comments of a module with their lines. Adjacent comment lines are
    joined.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text
    block, first, last = [], 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield first, "\n".join(block)
                block, first = [], token.start[0]
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    yield first, "\n".join(block)


@pytest.fixture(scope="module")
def pages() -> dict[str, set[str]]:
    """Returns every page of the guide with its proved statements."""
    return {
        str(page.relative_to(DOCS).with_suffix("")): statements(page.read_text())
        for page in DOCS.rglob("*.md")
    }


def test_every_citation_is_proved(pages):
    actual = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for folder in ("pate_tf", "benchmarks", "tests")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if path.name != "test_theory.py"
        for line, text in texts(path.read_text())
        for name in unproved(text, pages)
    ]
    assert actual == []


def test_the_library_cites_what_it_rests_on():
    cited = {
        name
        for path in (REPOSITORY / "pate_tf").rglob("*.py")
        for _, text in texts(path.read_text())
        for citation in CITATION.finditer(" ".join(text.split()))
        for name in names(*citation.groups())
    }
    expected = {f"Theorem {name}" for name in ("T0", "T1", "T2", "T3", "A", "B1", "B2")}
    assert expected <= cited


def test_the_pages_cite_what_is_proved(pages):
    for page in PROOFS.glob("*.md"):
        for paragraph in page.read_text().split("\n\n"):
            if not paragraph.startswith("|"):  # the table of the literature
                assert unproved(paragraph, pages) == [], page.name


def test_the_counterexamples_of_the_theory_are_what_it_says():
    """Covers Propositions X1 and D6."""
    theory = " ".join((PROOFS / "theory.md").read_text().split())
    split, leading = (
        exact_costs(np.array(counts), LaplaceNoisyMax(gamma=0.3), np.array([0.5]))[0]
        for counts in ([4, 4, 2], [5, 4, 1])
    )
    assert f"costs {split:.4f} at `[4, 4, 2]` and {leading:.4f} at `[5, 4, 1]`" in theory

    one = np.ones(1)
    mechanism = ConfidentGaussianNoisyMax(threshold=6.0, sigma_threshold=1000.0, sigma=1.0)
    here, there = (
        np.append(passed * mechanism.outcome_probabilities(np.array([counts]))[0], 1.0 - passed)
        for counts, passed in (([6, 4], norm.sf(0.0)), ([5, 5], norm.sf(0.001)))
    )
    moment = max(np.log(here @ (here / there)), np.log(there @ (there / here)))
    realised = mechanism.test_alphas(one)[0]
    assert f"at `l = 1` is {moment:.3f}. If the query did not pass" in theory
    assert f"answered queries is {realised:.6f}" in theory
