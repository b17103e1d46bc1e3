"""The blocks of the page on Python are whole programs, and run as they are printed."""

import pytest
from code_blocks import blocks
from script_processes import run_script

PAGE = "front_door.md"


def programs() -> dict[str, str]:
    files = (
        (block.marker.removeprefix("file: "), block.text)
        for block in blocks(PAGE)
        if block.language == "python"
    )
    return {name: text for name, text in files if name}


@pytest.mark.parametrize("name", programs())
def test_a_program_runs_as_it_is_printed(name, tmp_path):
    (tmp_path / name).write_text(programs()[name])
    ended = run_script(str(tmp_path / name), folder=tmp_path)
    assert ended.code == 0, ended.err
    assert ended.out.strip()
    assert list(tmp_path.glob("released*/privacy_statement.json"))
