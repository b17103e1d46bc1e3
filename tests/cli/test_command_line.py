import os
import pathlib
import re
import sys
import warnings

import pytest
from command_helpers import end, flag_values
from script_processes import REPOSITORY, modules_after, run_fresh

from pate_tf.cli import command_line
from pate_tf.ledger import LedgerError
from pate_tf.planning.forecast import ForecastError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("expected this\n  got   that"), 1, "expected this got that"),
        (
            OSError(28, "No space left on device"),
            1,
            "No space left on device; free some disk space",
        ),
        (OSError(2, "No such file or directory", "roster.toml"), 1, "roster.toml: No such file"),
        (LedgerError("spent"), 3, "spent"),
        (ForecastError("noise"), 4, "noise"),
        (MemoryError(), 1, "out of memory"),
        (Exception("a library: failed to map segment"), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "stopped; the same command resumes, but"),
        (
            ModuleNotFoundError("No module named 'grpc'", name="grpc"),
            *(1, "The package grpc is not installed. Run: pip install 'pate_tf[silos]'"),
        ),
    ],
)
def test_what_ends_a_command_is_one_line_and_an_exit_code(error, code, said, capsys):
    def main() -> None:
        raise error

    assert end(command_line.guarded(main, flag_values()), ["script"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err and captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_commands_define_their_flags_without_the_packages_of_an_extra():
    hidden = dict.fromkeys(command_line.EXTRAS)
    modules_after(
        f"import sys; sys.modules.update({hidden!r})\n"
        "from pate_tf.cli import aggregator_command, coordinator_command, dssgd_command\n"
        "from pate_tf.cli import schema_command, silo_command"
    )


def test_a_warning_is_shown_once_even_where_filters_change(capsys):
    def main() -> None:
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
            warnings.warn("mind this", stacklevel=1)

    command_line.guarded(main, flag_values())(["script"])
    assert capsys.readouterr().err == "warning: mind this\n"


def test_a_bug_is_not_hidden():
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command_line.guarded(main, flag_values())(["script"])


@pytest.mark.parametrize(("given_verbosity", "expected"), [(None, -1), (0, 0), (1, 1), (-2, -2)])
def test_logs_are_for_those_who_ask(given_verbosity, expected):
    values = flag_values(given_verbosity)
    command_line.guarded(lambda: None, values)(["script"])
    assert values["verbosity"].value == expected


CHATTER = """
import os, sys
sys.path.insert(0, os.getcwd())
from command_helpers import flag_values
from pate_tf.cli import command_line
def main():
    import tensorflow
    os.write(2, b"after\\n")
command_line.guarded(main, flag_values(eval(sys.argv[1])))(["script"])
"""


@pytest.mark.parametrize(("verbosity", "shown"), [(None, False), (0, True)])
def test_what_even_c_writes_at_the_start_of_tensorflow_is_hidden(
    verbosity, shown, tmp_path, monkeypatch
):
    (tmp_path / "tensorflow.py").write_text("import os\nos.write(2, b'chatter\\n')\n")
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{pathlib.Path(__file__).parent}")
    ended = run_fresh("-c", CHATTER, str(verbosity), folder=tmp_path)
    assert ended.err == ("chatter\nafter\n" if shown else "after\n")


def test_reports_are_private_json(tmp_path):
    path = tmp_path / "new" / "report.json"
    command_line.write_report(str(path), {"epsilon": 1.0})
    assert path.read_text() == '{\n  "epsilon": 1.0\n}\n'
    assert path.stat().st_mode & 0o777 == 0o600
    command_line.write_report(None, {"epsilon": 1.0})


@pytest.mark.parametrize("name", ["released/report.json", "released/new/r.json", "link/r.json"])
def test_reports_stay_out_of_what_is_published(tmp_path, name):
    (tmp_path / "released").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "released")
    with pytest.raises(ValueError, match="report_file is sensitive"):
        command_line.write_report(str(tmp_path / name), {"epsilon": 1.0})
    assert list(pathlib.Path(tmp_path / "released").iterdir()) == []


def test_progress_outside_of_a_terminal_with_a_size_is_whole_lines(monkeypatch):
    reader, writer = os.openpty()
    monkeypatch.setattr(command_line, "LINE_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", os.fdopen(writer, "w"))
    with command_line.reporting().progress_bar(desc="training", total=9, unit="step") as bar:
        bar.update(3)
    assert re.fullmatch(rb"(training: \d of 9 steps, \S+ left\r\n)+", os.read(reader, 1000))
