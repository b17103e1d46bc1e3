"""Invalid files are refused at once, before TensorFlow starts, and the message lists all errors."""

import pytest
from command_helpers import AGE
from script_processes import assert_one_line, run_fresh

from pate_tf.core import artifacts
from pate_tf.data.schema import read_schema
from pate_tf.net.credentials import write_demo_certificates
from pate_tf.serving import served

HAS_TENSORFLOW = """
import sys
from pate_tf.cli import main
try:
    main.run()
finally:
    print("tensorflow" in sys.modules)
"""
SCHEMA = AGE + '[columns.smoker]\ncategories = ["n", "y"]\n'
BAD = "age,smoker,ill\nx,y,no\n30,z,maybe\n40,y\n50,n,yes\n"
FAULTS = ["line 2: age must be a finite number", "line 3: ill must be a class, one of no, yes"]
FILES = ("--public=public.csv", "--schema=schema.toml")


BAD_FLAGS = """
teachers --dataset=nosuch;teachers --model=nosuch;student --epsilon=1 --model=nosuch;
student --epsilon=1 --export_formats=onnx,nosuch;run --epsilon=1 --dataset=nosuch;
dssgd --dataset=nosuch;coordinator --sigma=-1;coordinator --roster=nosuch;
silo serve --silo_dir=nosuch;aggregator --aggregator_dir=nosuch"""


@pytest.mark.parametrize("command", BAD_FLAGS.split(";"))
def test_flags_are_checked_before_tensorflow_starts(tmp_path, command):
    ended = run_fresh("-c", HAS_TENSORFLOW, *command.split(), folder=tmp_path)
    assert_one_line(ended, ended.code or 1)
    assert ended.out == "False\n" and not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "broken.toml").write_text(SCHEMA.replace("low = 18\n", "").replace("yes", "no"))
    (tmp_path / "public.csv").write_text("age,smoker\n30,y\n40,n\n50,y\n")
    (tmp_path / "private.csv").write_text(BAD)
    (tmp_path / "sheet.csv").write_bytes(b"PK\x03\x04")
    extra = tmp_path / "student" / "1" / served.EXTRA
    extra.mkdir(parents=True)
    schema = read_schema(tmp_path / "schema.toml")
    artifacts.write_json(extra / served.DATASET, schema.dataset("clinic", 1).to_dict())
    artifacts.write_text(extra / served.SCHEMA, schema.to_toml())
    return tmp_path


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["schema", "--schema=new.toml", "--public=sheet.csv"], ["Excel"]),
        (
            ["schema", "--schema=new.toml", "--public=public.csv", "--label=Age"],
            ["Did you mean age?"],
        ),
        (
            ["run", "--epsilon=1", "--private=private.csv", *FILES],
            [*FAULTS, "line 4 has 2 fields instead of 3"],
        ),
        (
            ["run", "--epsilon=1", "--private=public.csv", *FILES],
            ["public.csv is also the private file"],
        ),
        (
            ["run", "--epsilon=1", "--private=private.csv", FILES[0], "--schema=broken.toml"],
            ["age"],
        ),
        (["teachers", "--private=private.csv", *FILES], FAULTS),
        (
            ["student", "--method=feature_sums", "--epsilon=1", "--private=private.csv", *FILES],
            FAULTS,
        ),
        (["silo", "serve", "--silo_dir=silo", "--private=private.csv", FILES[1]], FAULTS),
        (["predict", "--student=student", "--inputs=sheet.csv", "--output=new.csv"], ["Excel"]),
        (
            [
                "predict",
                "--student=student",
                "--inputs=private.csv",
                "--output=new.csv",
                "--strict",
            ],
            ["line 2: age must be a finite number", "line 3: smoker must be a category"],
        ),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_files_are_refused_before_tensorflow_starts(folder, command, told):
    if command[0] == "silo":
        flags = ("--name=clinic", "--coordinator=localhost:1", "--epsilon_budget=1")
        made = run_fresh(
            "-c", HAS_TENSORFLOW, "silo", "init", "--silo_dir=silo", *flags, folder=folder
        )
        assert made.code == 0, made.err
        if not (folder / "certificates").exists():
            write_demo_certificates(folder / "certificates", ["clinic"])
    before = sorted(folder.iterdir())
    ended = run_fresh("-c", HAS_TENSORFLOW, *command, folder=folder)
    assert ended.code == 1 and ended.err.startswith("error: "), ended.err
    assert ended.out.endswith("False\n")
    assert "Traceback" not in ended.err and len(ended.err.splitlines()) <= 12
    for text in told:
        assert text in ended.err
    assert sorted(folder.iterdir()) == before
