"""Everything that the pages name exists, and they name all available choices."""

import ast
import dataclasses
import importlib
import pathlib
import re

import pytest
from code_blocks import DOCS, PAGES
from script_processes import REPOSITORY

from pate_tf.accounting.mechanisms import base
from pate_tf.cli import main
from pate_tf.core.settings import described
from pate_tf.queries.strategies import STRATEGIES
from pate_tf.students.student_kinds import StudentSettings

MAX_WORDS = 45_000  # of the guide, proofs included
CLI = REPOSITORY / "pate_tf" / "cli"
COMMANDS = [CLI / "command_line.py", *(CLI / f"{name}_command.py" for name in main.COMMANDS)]
OF_OTHERS = {
    # in the first release
    *("too_small", "teachers_max_steps", "epochs_per_decay", "dropout_seed", "beta"),
    "deeper",
    "log_device_placement",
    # in benchmarks
    *("only", "quick", "publish", "again", "epsilons", "methods", "repetitions", "seconds"),
    *("stored", "output_dir", "images", "draws"),
    # in the demonstration
    *("silos", "hosts"),
    # in Flower
    *("ssl", "database", "disable", "superlink", "root", "node", "run", "stream", "trusted"),
    "format",
    # in Apache Beam
    *("runner", "direct_num_workers", "direct_running_mode", "dask_client_address"),
    *("direct_runner_bundle_repeat", "dask_partition_size", "nthreads"),
    # in absl, TensorBoard and saved_model_cli
    *("help", "helpfull", "verbosity", "logdir", "dir", "all", "tag_set", "signature_def"),
    *("inputs", "outdir"),
}


def flags_of(command: pathlib.Path) -> set[str]:
    of_mechanisms = {
        "mechanism",
        "lap_scale",
        *(
            each.flag or name
            for kind in base.offered().values()
            for name, each in described(kind).items()
        ),
    }
    calls = ast.walk(ast.parse(command.read_text()))
    module = importlib.import_module(f"pate_tf.cli.{command.stem}")
    named = [*vars(module).values()]
    for one in vars(module).values():  # settings may be written as `analysis.SourceSettings`
        if getattr(one, "__name__", "").startswith("pate_tf."):
            named += vars(one).values()
    kinds = [one for one in named if isinstance(one, type) and dataclasses.is_dataclass(one)]
    of_settings = {each.flag or name for kind in kinds for name, each in described(kind).items()}
    return (
        of_mechanisms
        | of_settings
        | set(getattr(module, "TEXTS", ()))
        | set(getattr(module, "OPTIONS", ()))
        | {
            call.args[0].value
            for call in calls
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr.startswith("DEFINE_")
            and isinstance(call.args[0], ast.Constant)
        }
    )


@pytest.mark.parametrize("page", [page for page in PAGES if page != "notes/results.md"])
def test_flags_exist(page):
    known = set().union(OF_OTHERS, *(flags_of(command) for command in COMMANDS))
    named = set(re.findall(r"(?<![\w-])--([a-z]\w*)", (DOCS / page).read_text()))
    assert named - known == set()


def choices_of(flag: str) -> list[str]:
    if flag == "mechanism":
        return list(base.offered())
    if flag == "query_strategy":
        return list(STRATEGIES)
    return list(described(StudentSettings)["student"].choices)


@pytest.mark.parametrize(
    ("page", "flag"),
    [
        ("how-to/choose_student.md", "student"),
        ("how-to/choose_student.md", "query_strategy"),
        ("reference/mechanisms.md", "mechanism"),
    ],
)
def test_every_choice_is_named(page, flag):
    text = (DOCS / page).read_text()
    for choice in choices_of(flag):
        assert re.search(rf"(`|--{flag}=){choice}\b", text), choice


def test_quoted_messages_are_in_the_code():
    page = (DOCS / "reference" / "troubleshooting.md").read_text()
    code = "".join(path.read_text() for path in (REPOSITORY / "pate_tf").rglob("*.py"))
    quoted = re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)
    assert len(quoted) >= 10
    assert [message for message in quoted if message not in code] == []


def test_messages_link_to_pages_of_the_guide():
    code = "".join(path.read_text() for path in (REPOSITORY / "pate_tf").rglob("*.py"))
    linked = re.findall(r"\{GUIDE\}/([\w/-]+)\.html", code)
    assert linked and {f"{page}.md" for page in linked} <= set(PAGES)
    assert re.findall(r'"[^"]*\bdocs/(?!proofs)[^"\n]*\.md[^"]*"\n', code) == []


def test_the_guide_stays_short():
    words = sum(len((DOCS / page).read_text().split()) for page in PAGES)
    assert words <= MAX_WORDS, f"{words} words: say each fact once"


def test_the_reference_shows_public_modules_and_the_pages_import_no_others():
    pages = {page.stem: page.read_text() for page in (DOCS / "reference" / "api").glob("*.rst")}
    index = pages.pop("index")
    assert sorted(pages) == sorted(re.findall(r"^   (\w+)$", index, re.MULTILINE))
    shown = {name for text in pages.values() for name in re.findall(r"automodule:: ([\w.]+)", text)}
    assert all(importlib.import_module(name).__doc__ for name in shown)
    guide = [page for page in PAGES if page.startswith(("index", "tutorials", "how-to"))]
    imports = {
        match.groups()
        for page in guide
        for match in re.finditer(
            r"^from (pate_tf[\w.]*) import (\w+)", (DOCS / page).read_text(), re.M
        )
    }
    assert [(a, b) for a, b in imports if not {a, f"{a}.{b}"} & shown] == []
