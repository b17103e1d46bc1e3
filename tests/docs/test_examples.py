"""Runs the guide's examples as printed, page by page, in their order on the page.

A comment before a block, which readers do not see, describes it:

    <!-- not run: REASON -->   it needs something that the tests lack; counted in NOT_RUN
    <!-- file: NAME -->        the reader saves it under this name
    <!-- files of: PAGE -->    it needs the files that this page makes and saves, and is run
    <!-- prints -->            the exact output of the previous block
    <!-- prints in part -->    consecutive lines of that output
    <!-- prints rows -->       some rows of the output, with other values
    <!-- fails -->             every command ends with one line of error

Every page starts from the end of the first tutorials and does not repeat their commands. Trainings
get few steps.
"""

import functools
import os
import pathlib
import re
import shlex
import shutil
import site

import pytest
from code_blocks import DOCS, PAGES, README, blocks
from script_processes import Ended, learn_little, run_script, start_script

PATE, FEW_STEPS = "pate_tf/cli/main.py", "--max_steps=5"
FIRST = ("tutorials/first_student.md", "tutorials/own_data.md")
Seen = dict[tuple[str, ...], Ended]
TYPED = [README, *PAGES]

# Blocks that are not run, by page. All other blocks are run.
NOT_RUN = {
    README: 1,
    "how-to/beam.md": 5,
    "how-to/flower.md": 2,
    "how-to/own_model.md": 2,
    "how-to/run_a_silo.md": 2,
    "how-to/serve.md": 2,
    "how-to/shared_training.md": 3,
    "notes/instead.md": 1,
    "notes/reproduce.md": 1,
    "notes/scale.md": 1,
    "reference/run_folder.md": 1,
    "tutorials/first_student.md": 2,
    "tutorials/silos.md": 1,
}


LOOP = re.compile(r"for (\w+) in ([^;]+); do\n(.*?)\ndone", re.DOTALL)


def commands(text: str) -> list[list[str]]:
    def unrolled(match: re.Match[str]) -> str:
        name, values, body = match.groups()
        return "\n".join(body.replace(f"${name}", value) for value in values.split())

    lines = LOOP.sub(unrolled, text.replace("\\\n", " ")).splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def run_command(words: list[str], folder: pathlib.Path, seen: Seen) -> Ended:
    """Runs a command, or returns the earlier result if it was typed before, by either
    of its names.
    """
    program, script, *flags = words
    command = script.removeprefix("train_").removesuffix(".py")
    key = (command, *flags)
    if program == "pate":
        script, flags = PATE, [command, *flags]
    # Models of features are solved in closed form or come from scikit-learn, so they have no steps.
    without = ("--max_steps", "--representation", "--model=ridge")
    if command in ("teachers", "student") and not any(flag.startswith(without) for flag in flags):
        flags.append(FEW_STEPS)
    setup = functools.partial(set_up, str(folder))
    if key not in seen:
        seen[key] = run_script(script, *flags, folder=folder, setup=setup)
    return seen[key]


def set_up(folder: str) -> None:
    """Makes a user's own module importable from the folder where the commands are typed."""
    site.addsitedir(folder)
    learn_little()


def run_python(text: str, folder: pathlib.Path) -> Ended:
    block = folder / "block.py"
    block.write_text(text)
    return run_script(str(block), folder=folder, setup=learn_little)


def run_page(page: str, folder: pathlib.Path, seen: Seen) -> None:
    printed = ""
    for marker, language, text in blocks(page):
        kind, _, detail = marker.partition(": ")
        if kind == "files of":
            make_files(detail, folder)
            kind = ""
        if kind == "not run":
            assert detail, text
        elif kind == "file":
            (folder / detail).write_text(text)
        elif kind == "prints" and language == "text":
            assert printed.strip() == text.strip()
        elif kind == "prints in part" and language == "text":
            assert text.strip() in printed
        elif kind == "prints rows" and language == "text":
            assert row_names(text) <= row_names(printed)
        elif kind == "fails" and language == "bash":
            for ended in (run_command(words, folder, seen) for words in commands(text)):
                assert ended.code in (1, 3, 4), text
                assert re.fullmatch("error: .*\n", ended.err), ended.err
        elif not kind and language == "python":
            printed = succeeded(run_python(text, folder), text)
        elif not kind and language == "bash":
            working, printed = [], ""
            for words in commands(text):
                if words[-1] == "&":
                    working.append(start_script(PATE, *words[1:-1], folder=folder))
                    continue
                into = words[-1] if ">>" in words else os.devnull
                typed = words[:-2] if ">>" in words else words
                out = succeeded(run_command(typed, folder, seen), text)
                with (folder / into).open("a") as file:
                    file.write(out)
                printed += out
            for process in working:
                succeeded(process.wait(), text)
        else:
            raise AssertionError(f"expected a block that can be run, got {language} {marker!r}")


def row_names(table: str) -> set[str]:
    return {re.split(" {2,}", line.strip())[0] for line in table.splitlines()}


def make_files(page: str, folder: pathlib.Path) -> None:
    """Makes and saves the files that a page begins with: its first block, and its files."""
    first, *others = blocks(page)
    succeeded(run_python(first.text, folder), first.text)
    for block in others:
        kind, _, name = block.marker.partition(": ")
        if kind == "file":
            (folder / name).write_text(block.text)


def succeeded(ended: Ended, text: str) -> str:
    assert ended.code == 0, f"{text}\n{ended.err}"
    return ended.out


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Seen]:
    """Returns the folder in which the first tutorials were typed (don't write there), and their
    results.
    """
    folder, seen = tmp_path_factory.mktemp("first"), Seen()
    for page in FIRST:
        run_page(page, folder, seen)
    return folder, seen


@pytest.mark.parametrize("page", TYPED)
def test_examples_run(page, first, tmp_path):
    folder, seen = first
    if page in FIRST:
        assert (folder / "runs" / "digits-100" / "released" / "student" / "1").is_dir()
    elif any(block.marker.partition(":")[0] not in ("not run", "file") for block in blocks(page)):
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        run_page(page, tmp_path, dict(seen))


def test_what_is_not_run_is_counted():
    counted = {
        page: sum(block.marker.startswith("not run: ") for block in blocks(page)) for page in TYPED
    }
    assert {page: number for page, number in counted.items() if number} == NOT_RUN


@pytest.mark.parametrize("page", TYPED)
def test_every_block_is_seen(page):
    fences = re.findall(r"^```(?=\w)", (DOCS / page).read_text(), re.MULTILINE)
    assert len(fences) == len(blocks(page))


@pytest.mark.parametrize(
    "page", [page for page in TYPED if page in (README, "how-to/sign.md") or "tutorials" in page]
)
def test_every_command_of_the_first_pages_stands_in_a_block(page):
    typed = re.findall(r"^ +(?:pate|python3?|pip) .*", (DOCS / page).read_text(), re.MULTILINE)
    inside = "\n".join(block.text for block in blocks(page))
    assert [line for line in typed if line not in inside] == []
