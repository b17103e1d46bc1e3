import io
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest
from command_helpers import end, flag_values
from script_processes import REPOSITORY, run_fresh

from pate_tf.cli import command_line
from pate_tf.ledger import LedgerError


class FlagError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("expected this\n  got   that"),
        OSError(28, "No space left on device"),
        LedgerError("spent"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_users_mistake_is_one_line_and_exit_code_1(error, capsys):
    def main() -> None:
        raise error

    assert end(command_line.guarded(main, flag_values()), ["script"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.strip() != "error:"


def test_a_missing_file_is_named_first(tmp_path, capsys):
    def main() -> None:
        (tmp_path / "roster.toml").read_text()

    assert end(command_line.guarded(main, flag_values()), ["script"]) == 1
    expected = f"error: {tmp_path}/roster.toml: No such file or directory\n"
    assert capsys.readouterr().err == expected


def test_tensorflows_own_errors_count_as_the_users():
    import tensorflow as tf

    def main() -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "disk full")

    assert end(command_line.guarded(main, flag_values()), ["script"]) == 1


def test_stopping_says_how_to_go_on(capsys):
    def main() -> None:
        raise KeyboardInterrupt

    assert end(command_line.guarded(main, flag_values()), ["script"]) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_a_package_of_an_extra_is_named_with_the_extra(capsys):
    def main() -> None:
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    assert end(command_line.guarded(main, flag_values()), ["script"]) == 1
    expected = "error: expected the package grpc to be installed: pip install 'pate_tf[silos]'\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("module", ["party", "silo", "coordinator", "selective_sgd", "schema"])
def test_commands_define_their_flags_without_the_packages_of_an_extra(module):
    hidden = dict.fromkeys(command_line.EXTRAS)
    code = f"import sys; sys.modules.update({hidden!r}); import pate_tf.cli.{module}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_a_bug_is_not_hidden():
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command_line.guarded(main, flag_values())(["script"])


def test_an_untroubled_main_returns():
    calls = []
    command_line.guarded(lambda: calls.append(1), flag_values())(["script"])
    assert calls == [1]


@pytest.mark.parametrize(("given_verbosity", "expected"), [(None, -1), (0, 0), (1, 1), (-2, -2)])
def test_logs_are_for_those_who_ask(given_verbosity, expected):
    values = flag_values(given_verbosity)
    command_line.guarded(lambda: None, values)(["script"])
    assert values["verbosity"].value == expected


def test_flag_errors_are_one_line_and_exit_code_2(capsys):
    def parse(arguments):
        raise FlagError("flag --x=1:\n expected 2")

    assert end(command_line.parse_flags(parse, FlagError), ["script", "--x=1"]) == 2
    assert capsys.readouterr().err == "error: flag --x=1: expected 2\n"


def test_stray_arguments_are_flag_errors(capsys):
    parser = command_line.parse_flags(list, FlagError)
    assert parser(["script"]) == ["script"]
    assert end(parser, ["script", "mnist", "250"]) == 2
    assert capsys.readouterr().err == "error: expected flags only, got 'mnist 250'\n"


@pytest.mark.parametrize(("verbosity", "shown"), [(-1, False), (0, True)])
def test_a_quiet_start_hides_even_what_c_writes(verbosity, shown, capfd, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with command_line.quiet_start(flag_values(verbosity)):
        os.write(2, b"chatter\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == ("chatter\nafter\n" if shown else "after\n")


def test_a_failing_start_is_heard_again(capfd):
    with pytest.raises(ImportError), command_line.quiet_start(flag_values(-1)):
        raise ImportError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_no_bar_where_there_is_no_terminal(capsys):
    with command_line.progress_bar("training", 3, "teacher") as advance:
        advance(2)
        advance(1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch) -> Terminal:
    # In the test, not in a fixture: pytest puts its own stderr in place after those.
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    return terminal


def test_a_bar_on_a_terminal_counts(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    with command_line.progress_bar("training", 3, "teacher") as advance:
        advance(3)
    assert "training" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_a_full_bar_leaves_its_line_to_what_comes_next(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    with command_line.progress_bar("asking", 3, "query") as advance:
        advance(2)
        assert "\n" not in terminal.getvalue()
        advance(1)
        assert terminal.getvalue().endswith("\n")
        advance(0)
    assert terminal.getvalue().count("\n") == 1


def test_a_clock_runs_and_leaves_no_trace(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    with command_line.clock("reading"):
        deadline = time.monotonic() + 30.0
        while "reading: 00:01" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "reading: 00:01" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")
    assert "\n" not in terminal.getvalue()


def test_a_clock_stops_where_its_work_fails(monkeypatch):
    at_a_terminal(monkeypatch)
    threads = threading.active_count()
    with pytest.raises(ValueError, match="broken"), command_line.clock("reading"):
        raise ValueError("broken")
    assert threading.active_count() == threads


def test_no_clock_where_there_is_no_terminal(capsys):
    with command_line.clock("reading"):
        pass
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_table_is_aligned(capsys):
    command_line.print_table("Title", [("a", "1"), ("longer", "2")])
    assert capsys.readouterr().out == "\nTitle\n  a       1\n  longer  2\n"


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
    with pytest.raises(ValueError, match="report_file: expected"):
        command_line.write_report(str(tmp_path / name), {"epsilon": 1.0})
    assert list(pathlib.Path(tmp_path / "released").iterdir()) == []


@pytest.mark.long
def test_verbosity_is_absls(tmp_path):
    def said(verbosity: int) -> list[str]:
        flags = ("--nb_teachers=2", "--max_steps=2", f"--verbosity={verbosity}")
        train_dir = f"--train_dir=run{verbosity}"
        ended = run_fresh(str(REPOSITORY / "train_teachers.py"), *flags, train_dir, folder=tmp_path)
        assert ended.code == 0, ended.err[-2000:]
        return [line[:1] for line in ended.err.splitlines()]

    assert said(-2) == said(-1) == []  # errors; warnings, the default
    info, debug = said(0), said(1)
    assert "I" in info
    assert len(debug) > len(info)


def test_lines_now_and_then_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(command_line, "SECONDS_A_LINE", 0.01)
    with command_line.progress_bar("training", 3, "teacher") as advance:
        time.sleep(0.02)
        advance(2)
        advance(1)
    assert capsys.readouterr().err == "training: 2 of 3\n"
    with command_line.clock("reading"):
        deadline = time.monotonic() + 30.0
        found = ""
        while "reading: 0 s" not in found and time.monotonic() < deadline:
            time.sleep(0.05)
            found += capsys.readouterr().err
    assert "reading: 0 s\n" in found
