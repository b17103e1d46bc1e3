"""The blocks of the page on Python are whole programs, and run as they are printed.

Where they leave the number of a student's steps to the library, it is a small one here.
"""

import dataclasses

import pytest
from code_blocks import blocks
from script_processes import learn_little, run_script

PAGE = "tutorials/python.md"


def programs() -> dict[str, str]:
    files = (
        (block.marker.removeprefix("file: "), block.text)
        for block in blocks(PAGE)
        if block.language == "python"
    )
    return {name: text for name, text in files if name}


def few_steps() -> None:
    from pate_tf.students.kinds import CHOICES, kind_of, names, register

    learn_little()
    for name in names():
        register(dataclasses.replace(kind_of(name), max_steps=200), CHOICES[name])


@pytest.mark.parametrize("name", programs())
def test_a_program_runs_as_it_is_printed(name, tmp_path):
    (tmp_path / name).write_text(programs()[name])
    ended = run_script(str(tmp_path / name), folder=tmp_path, setup=few_steps)
    assert ended.code == 0, ended.err
    assert ended.out.strip()
    assert list(tmp_path.glob("released*/privacy_statement.json"))
