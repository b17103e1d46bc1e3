"""Settings are checked when they are made, and flags set them."""

import dataclasses
import pathlib
from typing import ClassVar

import pytest
from absl import flags
from absl.testing import flagsaver

from pate_tf.cli import command_line
from pate_tf.core.settings import Settings, described, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy(Settings):
    """Settings of a toy."""

    toy_size: int = setting(3, help="How large.", least=1, most=9)
    toy_rate: float | None = setting(None, help="How fast.", above=0.0, flag="toy_speed")
    toy_kind: str = setting("round", help="Of what kind.", choices=("round", "square"))
    toy_folder: pathlib.Path | None = setting(None, help="Where.", advanced=True)
    toy_weights: tuple[float, ...] | None = setting(None, help="Weights.")
    toy_loud: bool = setting(False, help="Whether it says so.")
    made: object = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallToy(Toy):
    """A toy that is never larger than 4."""

    restated: ClassVar = {"toy_size": {"most": 4, "help": "How large a small one is."}}


@pytest.fixture(scope="module", autouse=True)
def defined():
    command_line.define(Toy, group="toys")
    flags.FLAGS.mark_as_parsed()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"toy_size": 0}, r"toy_size must be a number in \[1, 9\], got 0"),
        ({"toy_size": 10}, r"toy_size must be a number in \[1, 9\], got 10"),
        ({"toy_size": True}, "toy_size must .*got True"),
        ({"toy_rate": 0.0}, r"toy_rate must be a number in \(0, inf\), got 0.0"),
        ({"toy_rate": float("nan")}, "toy_rate must .*got nan"),
        ({"toy_rate": float("inf")}, "toy_rate must .*got inf"),
        ({"toy_kind": "oval"}, "toy_kind must be one of round, square, got 'oval'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Toy(**values)


def test_what_a_class_restates_holds_for_it_and_stands_last():
    assert Toy(toy_size=9).toy_size == 9
    with pytest.raises(ValueError, match=r"^toy_size must be a number in \[1, 4\], got 9$"):
        SmallToy(toy_size=9)
    stated = described(SmallToy)
    assert [*stated] == [*[name for name in described(Toy) if name != "toy_size"], "toy_size"]
    assert stated["toy_size"].help == "How large a small one is."
    assert described(Toy)["toy_size"].help == "How large."


def test_flags_give_what_was_typed():
    assert command_line.read(Toy) == Toy()
    typed = ["--toy_speed=.5", "--toy_kind=square", "--toy_folder=a/b", "--toy_weights=1,20"]
    with flagsaver.flagsaver():
        flags.FLAGS(["toy", *typed, "--toy_loud"])
        assert command_line.read(Toy, made=1) == Toy(
            toy_rate=0.5,
            toy_kind="square",
            toy_folder=pathlib.Path("a/b"),
            toy_weights=(1.0, 20.0),
            toy_loud=True,
            made=1,
        )
    with flagsaver.flagsaver(toy_size=10), pytest.raises(ValueError, match="toy_size"):
        command_line.read(Toy)


def test_messages_name_the_flag():
    message = command_line.in_flags(
        "toy_rate: expected more than `toy_rate`", command_line.flag_of_argument(Toy)
    )
    assert message == "--toy_speed: expected more than --toy_speed"


def test_help_has_groups_and_hides_what_is_advanced(capsys):
    command_line.print_help("Makes a toy.", full=False)
    short = capsys.readouterr().out
    assert "toys:\n  --toy_size=int\n      How large.\n      Default: 3.\n" in short
    assert "--toy_kind=round|square" in short and "--toy_folder" not in short
    command_line.print_help("Makes a toy.", full=True)
    assert "--toy_folder" in capsys.readouterr().out
