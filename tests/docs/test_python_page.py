"""The Python programs of the first pages are complete, and run as printed.

If they leave the number of a student's steps to the library, this test uses a small number.
"""

import dataclasses
import importlib

import pytest
from code_blocks import README, blocks
from script_processes import learn_little, run_script

PAGES = (README, "tutorials/python.md")


def programs() -> dict[str, str]:
    """Returns names by text: a program on several pages runs once."""
    return {
        block.text: block.marker.removeprefix("file: ")
        for page in PAGES
        for block in blocks(page)
        if block.language == "python"
    }


def few_steps() -> None:
    from pate_tf.students import student_kinds

    learn_little()
    for name in student_kinds.names():
        module = importlib.import_module(f"{student_kinds.__name__}.{name}")
        module.KIND = dataclasses.replace(module.KIND, max_steps=20)


@pytest.mark.parametrize(("text", "name"), programs().items(), ids=programs().values())
def test_a_program_runs_as_it_is_printed(text, name, tmp_path):
    (tmp_path / name).write_text(text)
    ended = run_script(str(tmp_path / name), folder=tmp_path, setup=few_steps)
    assert ended.code == 0, ended.err
    assert ended.out.strip()
    (released,) = tmp_path.glob("runs/*/released")
    run = f"--train_dir={released.parent}"
    for words in (
        ("audit", "run", run),
        ("analysis", f"--statement={released}/privacy_statement.json"),
    ):
        signed = run_script("pate_tf/cli/main.py", *words, folder=tmp_path)
        assert signed.code == 0, signed.err
    assert (released / "report.html").is_file()
