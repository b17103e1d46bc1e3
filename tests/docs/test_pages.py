"""What the pages name exists, and what there is to choose from they name."""

import ast
import re

import pytest
from script_processes import REPOSITORY

from pate_tf.accounting.statement_words import QUERY_STRATEGIES

DOCS = REPOSITORY / "docs"
PAGES = sorted(page.name for page in DOCS.glob("*.md") if page.name != "results.md")
SCRIPTS = ("train_teachers.py", "train_student.py", "analysis.py")
OF_OTHERS = {
    # of the first release
    *("too_small", "teachers_max_steps", "epochs_per_decay", "dropout_seed"),
    "log_device_placement",
    "only",  # of benchmarks.paper
    # of absl, TensorBoard and saved_model_cli
    *("help", "verbosity", "logdir", "dir", "all", "tag_set", "signature_def", "inputs", "outdir"),
}


def flags_of(script: str) -> set[str]:
    calls = ast.walk(ast.parse((REPOSITORY / script).read_text()))
    return {
        call.args[0].value
        for call in calls
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr.startswith("DEFINE_")
        and isinstance(call.args[0], ast.Constant)
    }


@pytest.mark.parametrize("page", PAGES)
def test_flags_exist(page):
    known = set().union(OF_OTHERS, *(flags_of(script) for script in SCRIPTS))
    named = set(re.findall(r"(?<![\w-])--([a-z]\w*)", (DOCS / page).read_text()))
    assert named - known == set()


def choices_of(script: str, flag: str) -> list[str]:
    """The names that a flag's definition lists, also by way of a table of the library."""
    calls = [
        node
        for node in ast.walk(ast.parse((REPOSITORY / script).read_text()))
        if isinstance(node, ast.Call) and len(node.args) > 2
    ]
    names = next(call.args[2] for call in calls if getattr(call.args[0], "value", 0) == flag)
    if ast.unparse(names) == "list(statement_words.QUERY_STRATEGIES)":
        return list(QUERY_STRATEGIES)
    return ast.literal_eval(names)


@pytest.mark.parametrize(
    ("page", "flag"),
    [("student.md", "student"), ("student.md", "query_strategy"), ("noise.md", "mechanism")],
)
def test_every_choice_is_named(page, flag):
    text = (DOCS / page).read_text()
    for choice in choices_of("train_student.py", flag):
        assert re.search(rf"(`|--{flag}=){choice}\b", text), choice


def test_every_room_has_a_page_of_reference():
    package = REPOSITORY / "pate_tf"
    rooms = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    pages = {page.stem: page.read_text() for page in (DOCS / "api").glob("*.rst")}
    index = pages.pop("index")
    assert set(pages) == {room for room in rooms if not room.startswith("_")}
    for room, text in pages.items():
        assert text.endswith(f"\n.. room:: {room}\n")
        assert f"\n   {room}\n" in index
