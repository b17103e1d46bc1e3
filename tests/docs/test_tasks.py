"""Twenty tasks of a new user: at most three clicks from README, answered on the first screen.

A click is a link in a page's text. The first screen is the first 40 lines of a page, or of the
section that the link names.
"""

import pathlib
import re

import pytest
from script_processes import REPOSITORY

DOCS = REPOSITORY / "docs"
CLICKS, SCREEN = 3, 40
LINK = re.compile(r"\]\(([^)\s]+\.md(?:#[\w-]+)?)\)")

# A task, the page that answers it, and a text that its first screen must contain.
TASKS = {
    "train on my CSV by patient": ("how-to/csv.md", "--owner=patient"),
    "train on images in folders": ("how-to/images.md", "--private=private --public=public"),
    "train on texts": ("how-to/pretrained_encoder.md#texts", 'kind="text"'),
    "protect people who have several records": ("how-to/owners.md", "--owners_file"),
    "what may I publish": ("reference/run_folder.md", "may be published"),
    "how do I spend less": ("how-to/choose_epsilon.md#spend-less", "fewer queries"),
    "which epsilon do I choose": ("how-to/choose_epsilon.md", "pate plan --epsilon"),
    "is DP-SGD better for me": ("explanation/alternatives.md", "no public inputs"),
    "feature sums or teachers": ("explanation/feature_sums.md", "What it needs"),
    "use my own Keras model": ("how-to/own_model.md", "keras.Sequential"),
    "use a pre-trained encoder": ("how-to/pretrained_encoder.md", "--representation="),
    "serve the student": ("how-to/serve.md", "serving_default"),
    "sign a release": ("how-to/sign.md", "What you sign"),
    "attack my own release": ("how-to/audit.md", "mechanism_audit"),
    "my ledger was restored from a backup": (
        "how-to/recover_a_ledger.md",
        "restore the newest ledger",
    ),
    "what does this message mean": ("reference/troubleshooting.md", "message contains"),
    "train together with other hospitals": ("tutorials/silos.md", "coordinator"),
    "records that do not fit on one machine": ("how-to/beam.md", "pipelines.sums"),
    "come from the first release": ("how-to/first_release.md", "All teachers train in one"),
    "what was never tested": ("explanation/alternatives.md#limitations", "few records"),
}


def links(page: pathlib.Path) -> list[pathlib.Path]:
    paths = (match[1].partition("#")[0] for match in LINK.finditer(page.read_text()))
    return [(page.parent / path).resolve() for path in paths if "://" not in path]


def clicks() -> dict[pathlib.Path, int]:
    """Returns the smallest number of links from README to each page."""
    actual = {REPOSITORY / "README.md": 0}
    frontier = list(actual)
    while frontier:
        reached = [(one, actual[page] + 1) for page in frontier for one in links(page)]
        frontier = []
        for page, number in reached:
            if page not in actual:
                actual[page] = number
                frontier.append(page)
    return actual


def first_screen(name: str) -> str:
    path, _, section = name.partition("#")
    lines = (DOCS / path).read_text().splitlines()
    titles = [one.lstrip("# ").lower() if one.startswith("#") else "" for one in lines]
    anchors = [re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in titles]
    start = anchors.index(section) if section else 0
    return "\n".join(lines[start : start + SCREEN])


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_near_and_answered_at_once(task):
    page, answer = TASKS[task]
    assert clicks()[DOCS / page.partition("#")[0]] <= CLICKS
    assert answer.lower() in first_screen(page).lower()


def test_every_page_is_linked_from_another():
    assert set(DOCS.rglob("*.md")) - {DOCS / "index.md"} <= clicks().keys()


def test_every_link_of_a_page_leads_somewhere():
    pages = [*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")]
    lost = [(page.name, one.name) for page in pages for one in links(page) if not one.exists()]
    assert lost == []
