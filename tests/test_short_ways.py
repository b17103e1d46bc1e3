"""The number of files and functions on the way of one request from end to end.

It counts the distinct files below `pate_tf/` and the distinct functions that a request enters. Code
inside a function (comprehensions, lambdas, nested functions) counts as that function.
"""

import inspect
import pathlib
import sys
from types import CodeType

import pate_tf

PACKAGE = str(pathlib.Path(pate_tf.__file__).parent) + "/"


class Way:
    """Records the library functions entered while it is open, as `file:function`."""

    def __enter__(self):
        self._codes: set[CodeType] = set()
        sys.setprofile(self._record)
        return self

    def __exit__(self, *exception):
        sys.setprofile(None)

    def _record(self, frame, event, argument):
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # not a module or the body of a class
        if event == "call" and is_function and code.co_filename.startswith(PACKAGE):
            self._codes.add(code)

    @property
    def functions(self):
        named = {
            (code.co_filename.removeprefix(PACKAGE), code.co_qualname.split(".<")[0])
            for code in self._codes
        }
        return sorted(f"{file}:{name}" for file, name in named if name[0] != "<")

    @property
    def files(self):
        return sorted({one.split(":")[0] for one in self.functions})

    def check(self, what, *, files, functions):
        counted = f"{what}: {len(self.files)} files and {len(self.functions)} functions"
        print(counted, *self.functions, sep="\n  ")
        assert len(self.files) <= files and len(self.functions) <= functions, counted


def test_opening_a_ledger(tmp_path):
    from pate_tf.ledger import Ledger

    facts = {"ensemble_digest": "ab" * 32, "delta": 1e-5, "epsilon_budget": 1.0}
    Ledger.open(tmp_path / "other", **facts | {"ensemble_digest": "cd" * 32}).close()  # caches
    with Way() as new:
        ledger = Ledger.open(tmp_path / "sensitive", **facts)
    ledger.close()
    with Way() as again:
        ledger = Ledger.open(tmp_path / "sensitive", **facts)
    ledger.close()
    new.check("opening a new ledger", files=7, functions=35)
    again.check("opening a ledger again", files=7, functions=35)


def test_a_plan():
    from pate_tf.planning.comparison import plan

    with Way() as way:
        plan(1.0, num_teachers=250, num_classes=10)
    way.check("plan", files=11, functions=80)
