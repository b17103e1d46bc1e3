"""Every flag of every command with every kind of wrong value: more than five hundred cases."""

import functools
import pathlib
import xml.etree.ElementTree as ElementTree

import bad_folders
import pytest
from refused_runs import ANALYSIS, STUDENT, TEACHERS, Case, problems
from script_processes import run_script

# What a run would need beside the wrong flag, so that nothing else is wrong with it.
REST = {
    TEACHERS: {"nb_teachers": "12", "max_steps": "5", "train_dir": "new"},
    STUDENT: {
        **{"teachers_dir": "run", "train_dir": "new", "queries": "10", "max_steps": "5"},
        "lap_scale": "5",
    },
    ANALYSIS: {"counts_file": "votes.npy", "output_dir": "new"},
}
LONG = "x" * 6000
NO_NUMBER = ("", " ", "x", "nan", "1,5", "0x", "1e400", "None", LONG)
WRONG = {
    "int": (*NO_NUMBER, "1.5", "inf", "-1", "-99999999999999999999"),
    "float": (*(text for text in NO_NUMBER if text != "1e400"), "inf", "-inf", "-1"),
    "bool": ("perhaps", "2", "1.0", LONG),
    "string enum": ("", " ", "nosuch", LONG),
}
# Of the flags that take a name, a file or a folder.
NAMES = ("", " ", "nosuch", "nosuch:nosuch", ":", "json:loads", "os:nosuch", "../../evil", LONG)
FILES = (
    *("nosuch.npy", "folder", "empty", "text", "garbage.npy", "several.npz", "floats.npy", "loop"),
    *("/dev/null", "text/below", LONG),
)
FOLDERS = ("text", "text/below", "loop", "/dev/null", "/proc/nosuch", "a/released", LONG)
NO_RUNS = ("nosuch", "text", "folder", "loop", "/dev/null", "text/below", LONG)
REPORTS = (*FOLDERS[1:3], *FOLDERS[4:5], "folder", "a/released/r", LONG)
LISTS = (",", " ", "nosuch", "nosuch,nosuch", LONG)
KIND_OF_FLAG = {
    (TEACHERS, "dataset"): NAMES,
    (TEACHERS, "model"): NAMES[1:],
    (TEACHERS, "representation"): NAMES[1:],
    (STUDENT, "representation"): NAMES[1:],
    (TEACHERS, "teacher_id"): (*NO_NUMBER, "-1", "5-2", "0-12", "12", "1-2-3", "0-"),
    (TEACHERS, "owners_file"): FILES,
    (TEACHERS, "partition_file"): FILES,
    (TEACHERS, "train_dir"): FOLDERS,
    (TEACHERS, "merge_from"): ("nosuch", "text", "folder", "loop", "nosuch,nosuch", LONG),
    (TEACHERS, "class_weights"): ("", "x", "1", "1,2", "nan" + ",1" * 9, "-1" + ",1" * 9, LONG),
    (TEACHERS, "private"): FILES,
    (TEACHERS, "public"): FILES,
    (TEACHERS, "schema"): FILES,
    (TEACHERS, "label"): ("nosuch",),
    (TEACHERS, "owner"): ("nosuch",),
    (STUDENT, "public"): FILES,
    (STUDENT, "schema"): FILES,
    (STUDENT, "label"): ("nosuch",),
    # Of method feature_sums alone: refused with teachers, whatever they name.
    **dict.fromkeys([(STUDENT, name) for name in ("private", "owner", "owners_file")], FILES),
    **dict.fromkeys([(one, "image_size") for one in (TEACHERS, STUDENT)], ("", "x", "0", "8")),
    **dict.fromkeys([(one, "name") for one in (TEACHERS, STUDENT)], ("nosuch",)),
    **dict.fromkeys([(one, "source_name") for one in (TEACHERS, STUDENT)], ("", "a|b", LONG)),
    (STUDENT, "dataset"): NAMES,
    (STUDENT, "model"): NAMES[1:],
    (STUDENT, "train_dir"): FOLDERS,
    (STUDENT, "teachers_dir"): NO_RUNS,
    (STUDENT, "teachers"): FILES,
    (STUDENT, "export_formats"): LISTS,
    **dict.fromkeys([(STUDENT, name) for name in ("holder", "purpose", "run_name")], ("", LONG)),
    (ANALYSIS, "dataset"): ("nosuch",),  # with --calibrate alone
    (ANALYSIS, "counts_file"): FILES,
    (ANALYSIS, "indices_file"): FILES,
    (ANALYSIS, "train_dir"): NO_RUNS,
    (ANALYSIS, "ledger"): ("nosuch", "text", "folder", "loop", "/dev/null", "run,run", LONG),
    (ANALYSIS, "statement"): FILES,
    (ANALYSIS, "output_dir"): FOLDERS,
    (ANALYSIS, "plots"): FOLDERS,
    **{(script, "report_file"): REPORTS for script in REST},
    (ANALYSIS, "bound"): ("", *LISTS),
    (ANALYSIS, "release"): ("", *LISTS),
}
# Other flags that a flag is not read without.
WITH = {
    (STUDENT, "sigma"): {"mechanism": "gaussian_noisy_max", "lap_scale": None},
    (ANALYSIS, "train_dir"): {"counts_file": None},
    (ANALYSIS, "ledger"): {"counts_file": None},
    (ANALYSIS, "statement"): {"counts_file": None, "ledger": "run"},
}
# These say where data lie, and a data set that needs none does not look.
NOT_READ = {"data_dir"}


@functools.cache
def flags_of(script: str, folder: pathlib.Path) -> dict[str, str]:
    """Returns the flags that a command defines itself, and their types."""
    ended = run_script(script, "--helpxml", folder=folder)
    root = ElementTree.fromstring(ended.out)
    return {
        flag.findtext("name", ""): flag.findtext("type", "")
        for flag in root.findall("flag")
        if flag.findtext("key") == "yes"
    }


def wrong_values(script: str, name: str, kind: str) -> tuple[str, ...]:
    return KIND_OF_FLAG.get((script, name)) or WRONG.get(kind) or ()


def case_of(script: str, name: str, value: str) -> Case:
    rest = {**REST[script], **WITH.get((script, name), {}), name: value}
    return Case(
        script=script,
        flags=[f"--{flag}={said}" for flag, said in rest.items() if said is not None],
        prepare=bad_folders.many_kinds,
        code=None,
    )


def cases_of(script: str, folder: pathlib.Path) -> list[Case]:
    found = flags_of(script, folder)
    return [
        case_of(script, name, value)
        for name, kind in sorted(found.items())
        for value in wrong_values(script, name, kind)
    ]


@pytest.mark.parametrize("script", [TEACHERS, STUDENT, ANALYSIS])
def test_no_flag_is_left_out(tmp_path, script):
    found = flags_of(script, tmp_path)
    assert len(found) > 15
    left = {name for name, kind in found.items() if not wrong_values(script, name, kind)}
    assert left <= NOT_READ


@pytest.mark.long
@pytest.mark.parametrize("script", [TEACHERS, STUDENT, ANALYSIS])
def test_a_wrong_value_of_any_flag_is_refused_in_one_line(trained, tmp_path, script):
    cases = cases_of(script, tmp_path)
    assert len(cases) > 150
    assert problems(cases, tmp_path, trained=trained[0]) == []
