"""Errors that used to be accepted, charged first, or reported too late, too long or not at all."""

import shutil
from functools import partial

import bad_folders
import pytest
from refused_runs import ANALYSIS, STUDENT, TEACHERS, Case, problems
from script_processes import run_script

from pate_tf.core import artifacts
from pate_tf.ledger import Ledger

MINE = "functions_for_tests"
TEACH = ("--nb_teachers=12", "--max_steps=5", "--train_dir=new")
OWN = ("--nb_teachers=4", "--max_steps=5", "--train_dir=new")
ASK = ("--teachers_dir=run", "--queries=10", "--max_steps=5", "--lap_scale=5")
LITTLE = (*ASK, "--model=mlp", "--query_strategy=first")
VOTES = ("--counts_file=votes.npy", "--output_dir=new")
LONG = "x" * 6000


def teach(*flags, **more):
    return Case(script=TEACHERS, flags=(*TEACH, *flags), **more)


def own(function, *flags, **more):
    return Case(script=TEACHERS, flags=(*OWN, f"--dataset={MINE}:{function}", *flags), **more)


def ask(*flags, **more):
    return Case(script=STUDENT, flags=(*ASK, *flags), **more)


def analyse(*flags, **more):
    return Case(script=ANALYSIS, flags=(*VOTES, *flags), **{"prepare": bad_folders.votes, **more})


OF_DATA = [
    own("with_nan", told="must be finite"),
    own("differing", told="value_range is"),
    own("bad_labels", told="must be from -1 to 1"),
    own("no_private_labels", told="must return labels of the private records"),
    own("raises", told="raised KeyError ("),
    own("tiny_images", told="images of at least 6 x 6, got 4 x 4. Use mlp"),
    teach("--dataset=", told="--dataset must be digits, mnist"),
    ask("--dataset=", told="--dataset must be digits, mnist"),
    teach(f"--dataset={LONG}", told="got 'xxxx"),
]
OF_MODELS = [
    own("good", f"--model={MINE}:model_raises", told="model: functions_for_tests:model_raises"),
    own("good", f"--model={MINE}:model_is_unbuilt", told="with a known input shape"),
    own("good", f"--model={MINE}:model_of_other_classes", told="[None, 7]"),
    own("good", f"--model={MINE}:model_of_other_inputs", told="[None, 5]"),
    ask(f"--model={MINE}:model_raises", told="raised KeyError"),
]
OF_NUMBERS = [
    ask("--sigma=100", told="sigma: laplace_noisy_max does not have this parameter"),
    ask(
        "--mechanism=gaussian_noisy_max",
        told="lap_scale: gaussian_noisy_max does not have this parameter. It takes --sigma",
    ),
    ask("--mechanism=laplace_noisy_max", "--sigma_threshold=9", told="It takes --lap_scale"),
    ask("--mechanism=confident_gaussian_noisy_max", told="It takes --threshold and"),
    ask("--target_epsilon=1", told="lap_scale: use either this flag or --epsilon"),
    Case(
        script=STUDENT,
        flags=("--teachers_dir=run", "--target_epsilon=0.01"),
        told="The labels are not expected to be worth their cost",
    ),
    ask("--delta=1e-2", told="--delta must be at most one over the number of records"),
    ask("--nb_teachers=11", told="--nb_teachers is 12 in this run, got 11"),
    ask("--stdnt_share=597", told="--stdnt_share must be a whole number from 1 to 596"),
    ask("--stdnt_share=9", told="--queries must be from 1 to 9,"),
    ask("--model=nosuch", told="--model must be one of", code=2),
    ask("--new_budget_i_understand", "--epsilon_budget=1", told="_i_understand needs --delta"),
    teach("--learning_rate=5", told="--learning_rate must be a number in (0, 1]"),
    ask("--learning_rate=5", told="--learning_rate must be a number in (0, 1]"),
    *(
        teach(f"--nb_teachers={number}", told="must be a whole number from 1 to 1200")
        for number in (10**9, 2**63, 2**64 + 1)
    ),
    *(
        call(f"--max_steps={number}", told="--max_steps must be a number in [1, ")
        for call in (teach, ask)
        for number in (2**62, 2**63 + 1)
    ),
    *(
        call(f"--batch_size={10**9}", told="--batch_size must be a number in [1, 65536]")
        for call in (teach, ask)
    ),
    *(
        ask(f"--representation={name}", told="representation needs the strategy diverse or")
        for name in ("nosuch", "raw")
    ),
    ask("--query_strategy=medoids", "--representation=nosuch", told="representation must be one"),
    ask("--queries=100000000000", told="--queries must be from 1 to 400,"),
    ask("--lap_scale=1e-300", told="1/gamma must be from 2**-30 to 2**30 votes"),
    ask("--lap_scale=1e300", told="1/gamma must be from 2**-30 to 2**30 votes"),
    analyse("--moments=100000", told="--moments must be a number in [1, 4096]"),
    analyse("--nb_labels=1000000", told="--nb_labels must be a whole number from 1 to 100000"),
    analyse("--release=", told="release=: value should be one of", code=2),
]
OF_FLAGS = [
    *(teach(flag, code=2) for flag in ("--nosuch=1", "--nb_teachers=0", "--learning_rate=nan")),
    *(teach(flag, code=2) for flag in ("--batch_size=-1", "--seed=2147483648", "digits")),
    *(ask(f"--{name}=0", code=2) for name in ("lap_scale", "epsilon_budget", "queries", "nosuch")),
    *(ask(f"--mechanism={name}", code=2) for name in ("plurality", "toy_noisy_max")),
    ask("--query_strategy=by_true_label", code=2),
]
OF_PLACES = [
    *(
        Case(
            script=TEACHERS,
            flags=("--nb_teachers=12", "--max_steps=5", f"--train_dir={place}"),
            prepare=prepare,
            told=told,
        )
        for place, prepare, told in (
            ("linked", bad_folders.link_sensitive_to_released, "inside a folder called"),
            ("linked", bad_folders.link_released_to_sensitive, "must not be a link to sensitive/"),
            ("linked", bad_folders.link_released_elsewhere, "is a link. Replace it by a folder"),
            ("a/released", None, "inside a folder called released"),
            ("a/released/b", None, "inside a folder called released"),
            ("loop", bad_folders.loop_of_links, "loop"),
            ("text/run", partial(bad_folders.files, names=["text"]), "is not a writable folder"),
            ("/proc/nosuch", None, "is not a writable folder"),
            ("/dev/null/run", None, "is not a writable folder"),
        )
    ),
    # If other files should be there, nothing is made.
    Case(
        script=STUDENT,
        flags=("--teachers_dir=nosuch", "--train_dir=new", "--queries=10"),
        told="nosuch contains no trained ensemble. Run `pate teachers`",
    ),
    teach(f"--report_file={'y/' * 3000}", told="--report_file: can't write"),
    teach("--report_file=/proc/nosuch", told="--report_file: can't write"),
    *(
        ask(
            f"--train_dir={folder}",
            prepare=partial(bad_folders.files, names=[f"{folder}/{name}"]),
            told=told,
        )
        for folder in ("other", "run")
        for name, told in (
            ("released", "is not a writable folder"),
            ("released/student", "is not a writable folder"),
            ("released/logs", "is not a writable folder"),
            ("released/logs/student", "is not a writable folder"),
            ("released/unfinished_student", "is not a writable folder"),
            ("released/labels.npz/in_the_way", "but a file must be written here"),
            ("released/labels.json/in_the_way", "but a file must be written here"),
            ("released/privacy_statement.md/in_the_way", "but a file must be written here"),
            ("released/privacy_statement.json/in_the_way", "but a file must be written here"),
        )
    ),
]

OF_LEDGERS = [
    ask("--train_dir=/proc/nosuch", told="is not a writable folder"),
    ask("--train_dir=other/released", told="inside a folder called released"),
    *(
        ask(prepare=partial(bad_folders.files, names=[f"run/sensitive/{name}"]), told=told)
        for name, told in (
            ("votes", "run/sensitive/votes is not a writable folder"),
            ("ledger.sqlite3/in_the_way", "the ledger can't be used"),
            ("ledger.head.json/in_the_way", "this ledger does not exist"),
        )
    ),
    Case(
        script=STUDENT,
        flags=(
            *("--teachers_dir=run", "--queries=20", "--max_steps=5", "--lap_scale=5"),
            *("--epsilon_budget=0.01", "--delta=1e-5", "--new_budget_i_understand"),
        ),
        prepare=bad_folders.with_labels,
        told="--epsilon_budget must be at least",
    ),
    Case(
        script=ANALYSIS,
        flags=("--ledger=text",),
        prepare=partial(bad_folders.files, names=["text"]),
        told="--ledger must be a file ledger.sqlite3 or its folder, got text",
    ),
    Case(
        script=ANALYSIS,
        flags=("--ledger=other",),
        prepare=partial(bad_folders.files, names=["other/ledger.sqlite3"]),
        told="other/ledger.sqlite3",
    ),
    analyse(
        prepare=partial(bad_folders.votes_and_files, names=["new/released"]),
        told="new/released is not a writable folder",
    ),
]
OF_THE_FIRST_RELEASE = [
    Case(script=script, flags=(f"--{flag}=1",), code=2, told="/how-to/first_release.html")
    for script, flag in (
        (TEACHERS, "epochs_per_decay"),
        (TEACHERS, "dropout_seed"),
        (TEACHERS, "log_device_placement"),
        (ANALYSIS, "too_small"),
        (STUDENT, "teachers_max_steps"),
        (STUDENT, "nb_labels"),
    )
]
GROUPS = {
    "data": OF_DATA,
    "models": OF_MODELS,
    "numbers": OF_NUMBERS,
    "flags": OF_FLAGS,
    "places": OF_PLACES,
    "ledgers": OF_LEDGERS,
    "first_release": OF_THE_FIRST_RELEASE,
}


@pytest.mark.parametrize("group", GROUPS)
def test_it_is_refused_in_one_line_with_nothing_written_or_charged(trained, tmp_path, group):
    assert problems(GROUPS[group], tmp_path, trained=trained[0]) == []


def test_what_failed_after_charging_is_free_the_next_time(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "run")
    failing = run_script(STUDENT, *LITTLE, folder=tmp_path, setup=_fail_to_export)
    assert failing.code == 1
    assert failing.err.splitlines()[-1] == "error: no space left"
    with Ledger.read(tmp_path / "run" / "sensitive") as ledger:
        spent = ledger.spent().epsilon
        assert spent > 0.0
    ended = run_script(STUDENT, *LITTLE, folder=tmp_path)
    assert ended.code == 0, ended.err
    with Ledger.read(tmp_path / "run" / "sensitive") as ledger:
        assert ledger.spent().epsilon == spent


def _fail_to_export():
    from pate_tf.statement import publishing

    def export_student(*arguments, **options):
        raise OSError("no space left")

    assert callable(publishing.export_student)
    publishing.export_student = export_student


def test_a_second_student_in_one_folder_is_told_of_the_first(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "run")
    with artifacts.only_writer(tmp_path / "run" / "released"):
        ended = run_script(STUDENT, *LITTLE, folder=tmp_path)
    assert ended.code == 1
    assert "released is used by another process" in ended.err
    assert not list((tmp_path / "run" / "sensitive").glob("ledger*"))  # nothing was charged
    with artifacts.only_writer(tmp_path / "run" / "sensitive" / "teachers"):
        ended = run_script(TEACHERS, *TEACH[:2], "--train_dir=run", folder=tmp_path)
    assert "teachers is used by another process" in ended.err
    assert run_script(STUDENT, *LITTLE, folder=tmp_path).code == 0
