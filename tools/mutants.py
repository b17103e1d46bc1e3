"""Plants small faults (mutants) in the privacy-critical modules and counts those that tests find.

    python tools/mutants.py draw --number=320 --seed=1   # once: writes tools/mutants.json
    python tools/mutants.py find                         # where each stands now; which are gone
    python tools/mutants.py run --jobs=2                 # killed, timeout, survived or gone

A mutant is one change of one expression or statement. It is known by its function, the text of
its statement (as `ast.unparse` writes it), the change, and which of several equal ones it is: so
it is found again when the function moves to another file or is reformatted. One whose statement
was rewritten is gone. Three entries of the JSON, written by hand, say more:

    "moved": {"ledger-012": {"function": "Ledger.charge", "statement": "..."}}   what replaces it
    "renamed": {"old_name": "new_name"}     words that were renamed in functions and statements
    "explained": {"noise-003": "why no test can find it"}

`run` first runs the tests once with coverage, one process for each test file, to know which tests
execute which lines of the library; what processes of the tests' own execute is not seen. It then
tries each mutant in a copy of the repository: tests that execute its statement, those without
TensorFlow first, then others that execute its file, at most `--seconds` of them. A test that
takes half a minute and ten times as long as the slowest did is a timeout and counts as killed.
`run --control` changes nothing: all must survive. Needs the Python that drew the sample:
`ast.unparse` differs a little between versions.
"""

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import difflib
import faulthandler
import functools
import hashlib
import importlib.util
import itertools
import json
import math
import os
import pathlib
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import coverage
import pytest

ROOT = pathlib.Path(__file__).absolute().parents[1]
SAMPLE = ROOT / "tools" / "mutants.json"
CACHE = ROOT / "build" / "mutants"

# What is privacy-critical, by name; a file belongs to the last module that names it.
MODULES = {
    "accounting": ("pate_tf/accounting",),
    "ledger": ("pate_tf/ledger",),
    "aggregation": ("pate_tf/aggregation",),
    "noise": ("pate_tf/aggregation/noise.py",),
    "releases": (
        "pate_tf/analysis/release.py",
        "pate_tf/analysis/release_planning.py",
        "pate_tf/analysis/release_results.py",
        "pate_tf/analysis/smooth_sensitivity.py",
    ),
    "silos": ("pate_tf/silos/account.py", "pate_tf/silos/secure"),
    "shared_training": (
        "pate_tf/accounting/noisy_training.py",
        "pate_tf/selective_sgd/settings.py",
        "pate_tf/selective_sgd/private_training.py",
        "pate_tf/selective_sgd/upload.py",
    ),
}
FEWEST = 20  # mutants of a module
MOST_OF_A_STATEMENT = 2
TESTS = (
    "tests/core/test_sensitive_values.py",
    "tests/test_appendix_c.py",
    "tests/accounting",
    "tests/analysis",
    "tests/aggregation",
    "tests/ledger",
    "tests/releases",
    "tests/selective_sgd",
    "tests/silos",
    "tests/statement",
)

# ---- what can be changed -----------------------------------------------------------------------

Item = TypeVar("Item")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def both_ways(*pairs: tuple[Item, Item]) -> dict[Item, Item]:
    """Returns what each of a pair is replaced by: the other."""
    return {one: other for pair in pairs for one, other in (pair, pair[::-1])}


ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    **both_ways((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.FloorDiv, ast.Mod)),
    **both_ways((ast.LShift, ast.RShift), (ast.BitAnd, ast.BitOr)),
    ast.Pow: ast.Mult,
}
COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **both_ways((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    **both_ways((ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
}
BOOLEAN: dict[type[ast.boolop], type[ast.boolop]] = both_ways((ast.And, ast.Or))
EXTREME = both_ways(("min", "max"), ("minimum", "maximum"), ("floor", "ceil"), ("all", "any"))
# What a function returns instead, by its annotation.
RETURNED = {
    "bool": "not ({})",
    "int": "({}) + 1",
    "float": "2.0 * ({})",
    "FloatArray": "2.0 * ({})",
    "IntArray": "({}) + 1",
}
WORDS_ONLY = {"__repr__", "__str__"}
LOGGING = re.compile(r"_?(log|logger|logging|warnings)\b", re.IGNORECASE)
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list")


@dataclasses.dataclass(frozen=True)
class Change:
    """A mutant, in words that stay when code moves.

    Attributes:
        file: path below the repository.
        function: qualified name of the innermost function or class; empty for the module.
        statement: the smallest statement around it; of a compound one its first line.
        operator: the kind of change.
        before: the expression or statement.
        after: what replaces it.
        occurrence: which of those in the function that are equal in all of this, from 0.
    """

    file: str
    function: str
    statement: str
    operator: str
    before: str
    after: str
    occurrence: int


@dataclasses.dataclass(frozen=True)
class Site:
    """A change that a file has a place for.

    Attributes:
        change: what is changed.
        line: number of the line where the statement begins.
        lines: line numbers; a test that executes one of them may notice.
        start: first byte of what is replaced.
        stop: the byte after it.
        text: what replaces these bytes.
    """

    change: Change
    line: int
    lines: range
    start: int
    stop: int
    text: str

    @property
    def place(self) -> str:
        """File and line, as editors open them."""
        return f"{self.change.file}:{self.line}"

    def mutated(self, source: bytes) -> bytes:
        """Returns the file's source with the change."""
        return source[: self.start] + self.text.encode() + source[self.stop :]


def rewritten(node: ast.AST, **fields: Any) -> str:
    """Returns the text of a node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return ast.unparse(other)


def is_text(node: ast.expr) -> bool:
    """Returns whether an operand is a string."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def constant_change(value: object) -> str | None:
    """Returns what replaces a constant; None for what is no number."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str({1: 0}.get(value, value + 1))
    if isinstance(value, float) and math.isfinite(value):
        return repr(2.0 * value or 1.0)
    return None


def expression_changes(node: ast.expr) -> Iterator[tuple[str, ast.expr, str]]:
    """Yields operator, what is replaced and what replaces it, of one expression alone."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if not is_text(left) and not is_text(right):
                yield "arithmetic", node, rewritten(node, op=ARITHMETIC[type(op)]())
        case ast.Compare(ops=ops):
            for index, one in enumerate(ops):
                others = [*ops[:index], COMPARISON[type(one)](), *ops[index + 1 :]]
                yield "comparison", node, rewritten(node, ops=others)
        case ast.BoolOp(op=op):
            yield "boolean", node, rewritten(node, op=BOOLEAN[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign", node, ast.unparse(operand)
        case ast.Constant(value=value) if (other := constant_change(value)) is not None:
            yield "constant", node, other
        case ast.Call(func=ast.Name(id=name)) if name in EXTREME:
            yield "extreme", node, rewritten(node, func=ast.Name(EXTREME[name]))
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in EXTREME:
            yield "extreme", node, rewritten(node, func=ast.Attribute(owner, EXTREME[name]))
        case ast.Call(func=ast.Name(id="range"), args=[bound] | [_, bound, *_]):
            if not isinstance(bound, ast.Constant):
                yield "bound", bound, f"({ast.unparse(bound)}) - 1"
        case ast.Slice(lower=lower, upper=upper):
            for end, step in ((lower, "+ 1"), (upper, "- 1")):
                if end is not None and not isinstance(end, ast.Constant):
                    yield "bound", end, f"({ast.unparse(end)}) {step}"


def statement_changes(
    statement: ast.stmt, inside: Function | None
) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yields the same of a statement as a whole."""
    match statement:
        case ast.Expr(value=ast.Call() as call):
            if not ast.unparse(call).startswith("super().__init__("):
                yield "call", statement, "pass"
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC and not is_text(statement.value):
            yield "arithmetic", statement, rewritten(statement, op=ARITHMETIC[type(op)]())
        case ast.If(test=test, body=[*_, ast.Raise()], orelse=[]):
            yield "guard", test, "False"
        case ast.Return(value=ast.expr() as value) if inside is not None and inside.returns:
            kind = ast.unparse(inside.returns)
            if not isinstance(value, ast.Constant | ast.Compare | ast.BoolOp | ast.UnaryOp):
                if kind in RETURNED:
                    yield "returned", value, RETURNED[kind].format(ast.unparse(value))
                elif kind.endswith("| None"):
                    yield "returned", value, "None"


def statements(
    node: ast.AST, function: str = "", inside: Function | None = None
) -> Iterator[tuple[str, Function | None, ast.stmt]]:
    """Yields all statements below a node, each with its function's or class' name, and function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from statements(child, function, inside)
        elif isinstance(child, ast.stmt):
            yield function, inside, child
            if isinstance(child, Function | ast.ClassDef):
                within = child if isinstance(child, Function) else None
                if child.name not in WORDS_ONLY:
                    yield from statements(child, f"{function}.{child.name}".lstrip("."), within)
            else:
                yield from statements(child, function, inside)


def own_expressions(statement: ast.stmt) -> list[ast.expr]:
    """Returns a statement's expressions without those of statements in it, annotations, errors."""
    match statement:
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
            return [*arguments.defaults, *(each for each in arguments.kw_defaults if each)]
        case ast.ClassDef() | ast.Raise() | ast.Assert():
            return []
        case ast.AnnAssign(value=value):
            return [value] if value else []
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return [item.context_expr for item in items]
    return [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]


def parts(node: ast.AST) -> Iterator[ast.expr]:
    """Yields an expression and all in it, but no texts with values in them.

    Nor the `strict=True` of `zip`: it checks lengths again.
    """
    if isinstance(node, ast.expr):
        yield node
    if not isinstance(node, ast.JoinedStr) and getattr(node, "arg", None) != "strict":
        for child in ast.iter_child_nodes(node):
            yield from parts(child)


def first_line(statement: ast.stmt) -> str:
    """Returns a statement's text; of a compound one without the blocks in it."""
    if not hasattr(statement, "body"):
        return ast.unparse(statement)
    blocks: dict[str, list[ast.stmt]] = {name: [] for name in BLOCKS if hasattr(statement, name)}
    blocks["body"] = [ast.Pass()]
    return rewritten(statement, **blocks).removesuffix("pass").strip()


def sites_in(file: str, source: bytes) -> list[Site]:
    """Returns every change that a file has a place for, in the order of its statements."""
    tree = ast.parse(source)
    lengths = [len(line) for line in source.splitlines(keepends=True)]
    starts = [0, *itertools.accumulate(lengths)]
    equal: collections.Counter[tuple[str, ...]] = collections.Counter()
    sites = []
    for function, inside, statement in statements(tree):
        own = own_expressions(statement)
        if isinstance(statement, ast.Expr) and LOGGING.match(ast.unparse(statement)):
            continue
        changes = [
            *statement_changes(statement, inside),
            *(each for top in own for part in parts(top) for each in expression_changes(part)),
        ]
        if not changes:
            continue
        if isinstance(statement, Function):
            lines = range(statement.lineno, (statement.end_lineno or 0) + 1)
        elif inside is None:  # executed by every import
            lines = range(1, len(lengths) + 1)
        else:
            last = max((node.end_lineno or 0 for node in own), default=statement.lineno)
            lines = range(statement.lineno, last + 1)
        text = first_line(statement)
        for operator, node, after in changes:
            key = (function, text, operator, ast.unparse(node), after)
            change = Change(file, *key, equal[key])
            equal[key] += 1
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            replacement = after if isinstance(node, ast.stmt) else f"({after})"
            sites.append(Site(change, statement.lineno, lines, start, stop, replacement))
    return sites


# ---- the sample --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of the sample.

    Attributes:
        name: unique.
        module: one of `MODULES`.
        change: as it was drawn, or as `moved` says.
    """

    name: str
    module: str
    change: Change


@dataclasses.dataclass(frozen=True)
class Sample:
    """The fixed sample, and what was written by hand since."""

    mutants: list[Mutant]
    renamed: dict[str, str]
    explained: dict[str, str]

    @classmethod
    def read(cls, path: pathlib.Path) -> "Sample":
        """Reads the JSON that `draw` wrote."""
        if not path.exists():
            raise SystemExit(f"error: expected a sample in {path}, got none: draw one")
        values = json.loads(path.read_text())
        mutants = []
        for row in values["mutants"]:
            name, module = row.pop("name"), row.pop("module")
            change = Change(**row | values["moved"].get(name, {}))
            mutants.append(Mutant(name, module, change))
        names = {mutant.name for mutant in mutants}
        if unknown := {*values["moved"], *values["explained"]} - names:
            raise SystemExit(f"error: expected names of mutants, got {', '.join(sorted(unknown))}")
        return cls(mutants, values["renamed"], values["explained"])

    def of(self, module: str | None) -> list[Mutant]:
        """Returns the mutants of one module, or all."""
        return [mutant for mutant in self.mutants if module in (None, mutant.module)]


def module_of_files(root: pathlib.Path) -> dict[str, str]:
    """Returns the module of each file that is privacy-critical."""
    found = {}
    for module, names in MODULES.items():
        for name in names:
            path = root / name
            if not path.exists():
                raise SystemExit(f"error: expected {name} of {module}, got no such file or folder")
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                found[file.relative_to(root).as_posix()] = module
    return found


def shares(sizes: dict[str, int], number: int) -> dict[str, int]:
    """Returns how many of `number` to draw from strata: in proportion, but not below `FEWEST`."""
    shares: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: sizes[name]):
        left = sum(sizes[other] for other in sizes if other not in shares)
        ahead = number - sum(shares.values())
        wanted = max(FEWEST, round(ahead * sizes[name] / left))
        shares[name] = min(wanted, ahead, MOST_OF_A_STATEMENT * sizes[name])
    return shares


def draw(
    sites: Iterable[Site], modules: dict[str, str], *, number: int, seed: int
) -> list[tuple[str, Site]]:
    """Draws sites at random by module: a second of a statement where every statement has one."""
    generator = random.Random(seed)
    by_statement: dict[str, dict[tuple[str, int, str], list[Site]]] = {}
    for site in sites:
        if module := modules.get(site.change.file):
            key = (site.change.file, site.line, site.change.statement)
            by_statement.setdefault(module, {}).setdefault(key, []).append(site)
    sample = []
    for module, share in shares({m: len(s) for m, s in by_statement.items()}, number).items():
        of_statements = list(by_statement[module].values())
        generator.shuffle(of_statements)
        for each in of_statements:
            generator.shuffle(each)
        rounds = [
            (module, each[turn])
            for turn in range(MOST_OF_A_STATEMENT)
            for each in of_statements
            if len(each) > turn
        ]
        sample += rounds[:share]
    order = {module: index for index, module in enumerate(MODULES)}
    return sorted(sample, key=lambda pair: (order[pair[0]], pair[1].change.file, pair[1].start))


class Library:
    """Every change that the library of a repository has a place for."""

    def __init__(self, root: pathlib.Path) -> None:
        self.sites = [
            site
            for path in sorted((root / "pate_tf").rglob("*.py"))
            for site in sites_in(path.relative_to(root).as_posix(), path.read_bytes())
        ]
        self._functions = {(site.change.file, site.change.function) for site in self.sites}
        self._sites: dict[tuple[object, ...], list[Site]] = {}
        for site in self.sites:
            self._sites.setdefault(identity(site.change), []).append(site)

    def locate(self, change: Change, renamed: dict[str, str]) -> Site | None:
        """Returns where a change stands; None if it is gone or there are several such places."""
        for wanted in (change, with_new_words(change, renamed)):
            found = self._sites.get(identity(wanted), [])
            if (wanted.file, wanted.function) in self._functions:  # equal ones elsewhere are others
                found = [site for site in found if closeness(wanted, site.change)[:2] == (1, 1)]
            ranks = [closeness(wanted, site.change) for site in found]
            if ranks and ranks.count(max(ranks)) == 1:
                return found[ranks.index(max(ranks))]
        return None

    def nearest(self, change: Change) -> Change | None:
        """Returns the change of the same kind that reads most like one that is gone."""

        def similarity(other: Change) -> float:
            one, two = (f"{c.function} {c.statement} {c.after}" for c in (change, other))
            return difflib.SequenceMatcher(None, one, two, autojunk=False).ratio()

        changes = [site.change for site in self.sites if site.change.operator == change.operator]
        return max(changes, key=similarity, default=None)


def identity(change: Change) -> tuple[object, ...]:
    """Returns what stays of a change when its function moves, to a class or a file."""
    name = change.function.rpartition(".")[2]
    fields = (change.statement, change.operator, change.before, change.after, change.occurrence)
    return name, *fields


def closeness(wanted: Change, other: Change) -> tuple[bool, bool, int]:
    """Returns what tells equal changes apart: file, qualified name, folders that they share."""
    pairs = zip(wanted.file.split("/"), other.file.split("/"), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return wanted.file == other.file, wanted.function == other.function, shared


def with_new_words(change: Change, renamed: dict[str, str]) -> Change:
    """Returns a change after whole words of its function and statement were renamed."""
    fields = dataclasses.asdict(change)
    for name in ("function", "statement", "before", "after"):
        fields[name] = re.sub(r"\w+", lambda word: renamed.get(word[0], word[0]), fields[name])
    return Change(**fields)


# ---- in the child process: pytest, with coverage or with a chosen list ---------------------------


class Recorder:
    """A plugin of pytest: which lines each test executes, fixtures that tests share apart."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.context = ""
        self.seconds: dict[str, float] = {}
        self.contexts: dict[str, list[str]] = {}
        self.unfit: set[str] = set()
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Runs a test in a context of its own, with empty caches."""
        for name, module in list(sys.modules.items()):
            if name.startswith("pate_tf"):
                for value in list(vars(module).values()):
                    if isinstance(value, functools._lru_cache_wrapper):
                        value.cache_clear()
        self.context = item.nodeid
        self.measured.switch_context(self.context)
        started = time.monotonic()
        result = yield
        self.seconds[item.nodeid] = time.monotonic() - started
        names = getattr(item, "fixturenames", [])
        self.contexts[item.nodeid] = [item.nodeid, *(f"fixture {name}" for name in names)]
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: "pytest.FixtureDef[object]"
    ) -> Generator[None, object, object]:
        """Keeps the lines of a fixture that tests share in its own context."""
        outer = self.context
        if fixturedef.scope != "function":
            self.context = f"fixture {fixturedef.argname}"
        self.measured.switch_context(self.context)
        try:
            return (yield)
        finally:
            self.context = outer
            self.measured.switch_context(outer)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes tests that can't tell anything."""
        if not report.passed:
            self.unfit.add(report.nodeid)
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a file that can't be imported."""
        if report.failed:
            self.failed.add(report.nodeid)


class Chosen:
    """A plugin of pytest: runs the tests of a list, and ends the process where one hangs."""

    def __init__(self, limits: dict[str, float], output: pathlib.Path) -> None:
        self.limits = limits
        self.output = output
        self.order = {name: index for index, name in enumerate(limits)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the tests of the list, in its order."""
        chosen = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Notes which test runs, and until when it may."""
        self.output.write_text(json.dumps({"running": item.nodeid}))
        faulthandler.dump_traceback_later(self.limits[item.nodeid], exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes the test that failed."""
        if report.failed:
            self.output.write_text(json.dumps({"failed": report.nodeid}))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a file that can't be imported."""
        if report.failed:
            self.output.write_text(json.dumps({"failed": report.nodeid}))


def run_pytest(files: Iterable[str], plugin: object, *options: str) -> int:
    """Runs tests of the working directory; what Hypothesis tries is the same each time."""
    import hypothesis

    # A failing example needs no shortening.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=phases
    )
    library = importlib.util.find_spec("pate_tf")
    if library is None or not pathlib.Path(library.origin or "").is_relative_to(pathlib.Path.cwd()):
        raise SystemExit(f"error: expected pate_tf of {pathlib.Path.cwd()}, got another")
    quiet = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants")
    return int(pytest.main([*quiet, *options, *files], plugins=[plugin]))


def record(test_file: str, output: pathlib.Path, *, long: bool) -> int:
    """Runs a test file with coverage and writes what its tests execute."""
    library = pathlib.Path.cwd() / "pate_tf"
    measured = coverage.Coverage(data_file=None, config_file=False, source=[str(library)])
    recorder = Recorder(measured)
    measured.start()
    code = run_pytest([test_file], recorder, "-m", "" if long else "not long")
    measured.stop()
    data = measured.get_data()
    tests = {
        name: {"seconds": seconds, "contexts": recorder.contexts[name]}
        for name, seconds in recorder.seconds.items()
        if name not in recorder.unfit
    }
    executed: dict[str, dict[str, list[int]]] = {}
    for file in data.measured_files():
        by_context = executed.setdefault(os.path.relpath(file), {})
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                by_context.setdefault(context, []).append(line)
    values = {
        "code": code,
        "failed": sorted(recorder.failed),
        "tensorflow": "tensorflow" in sys.modules,
        "tests": tests,
        "executed": executed,
    }
    output.write_text(json.dumps(values))
    return 0


def attempt(plan: pathlib.Path, output: pathlib.Path) -> int:
    """Runs the tests of a plan until one fails; returns pytest's exit code."""
    limits = json.loads(plan.read_text())
    files = dict.fromkeys(name.partition("::")[0] for name in limits)
    return run_pytest(files, Chosen(limits, output), "-m", "", "--maxfail=1")


# ---- in the parent process -----------------------------------------------------------------------


def at_once(function: Callable[[Item], None], items: Iterable[Item], number: int) -> None:
    """Calls a function with each item, so many at once; after an error no more are begun."""
    pool = concurrent.futures.ThreadPoolExecutor(number)
    try:
        for _ in pool.map(function, items):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def not_copied(folder: str, names: list[str]) -> list[str]:
    """Returns what is no part of the repository: at the top what .gitignore names, and Git's."""
    built = re.compile(r"\.|build$|runs$|bazel-")
    top = pathlib.Path(folder) == ROOT
    return [name for name in names if name == "__pycache__" or (top and built.match(name))]


class Copies:
    """Copies of the repository, for as many processes at once; each has its own temporary files."""

    def __init__(self, scratch: pathlib.Path, number: int) -> None:
        self.first = scratch / "0" / "tree"
        self.free: queue.Queue[pathlib.Path] = queue.Queue()
        for index in range(number):
            tree = scratch / str(index) / "tree"
            # All are copies of the first: others may be editing the repository.
            source = self.first if index else ROOT
            shutil.copytree(source, tree, ignore=not_copied, symlinks=True)
            self.free.put(tree)

    def child(self, tree: pathlib.Path, *arguments: str, seconds: float) -> int | None:
        """Runs this module in a copy; returns the exit code, None after so many seconds."""
        temporary = tree.parent / "tmp"
        temporary.mkdir()
        environment = os.environ | {"PYTHONPATH": str(tree), "TMPDIR": str(temporary)}
        environment.setdefault("PATE_TF_SHARED", str(ROOT.parent / "shared"))
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            environment[name] = "1"
        with (tree.parent / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tools.mutants", *arguments],
                cwd=tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            code = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what tests left running, too
            process.wait()
        shutil.rmtree(temporary, ignore_errors=True)
        return code


@dataclasses.dataclass
class Executed:
    """Which tests execute what.

    Attributes:
        seconds: that each test takes.
        heavy: tests in processes that load TensorFlow.
        tests: by file of the library and line.
    """

    seconds: dict[str, float]
    heavy: set[str]
    tests: dict[str, dict[int, set[str]]]

    def add(self, values: dict[str, Any]) -> None:
        """Adds what `record` wrote of a test file."""
        by_context: dict[str, list[str]] = {}
        for name, test in values["tests"].items():
            self.seconds[name] = test["seconds"]
            if values["tensorflow"]:
                self.heavy.add(name)
            for context in test["contexts"]:
                by_context.setdefault(context, []).append(name)
        for file, lines_of in values["executed"].items():
            of_file = self.tests.setdefault(file, {})
            for context, lines in lines_of.items():
                for line in lines:
                    of_file.setdefault(line, set()).update(by_context.get(context, ()))

    def at(self, site: Site) -> set[str]:
        """Returns the tests that execute a site's lines."""
        of_file = self.tests.get(site.change.file, {})
        return set().union(*(of_file.get(line, set()) for line in site.lines))

    def plans(self, site: Site, seconds: float) -> list[list[str]]:
        """Returns tests to run after each other in one process each, of so many seconds in all.

        Those that execute the site come first, then others of its file; of each the quickest,
        and those without TensorFlow before the others.
        """
        near = self.at(site)
        of_file = set().union(*self.tests.get(site.change.file, {}).values())
        plans = []
        for tests in (near, of_file - near):
            chosen: set[str] = set()
            for test in sorted(tests, key=lambda name: (self.seconds[name], name)):
                if chosen and self.seconds[test] > seconds:
                    break
                seconds -= self.seconds[test]
                chosen.add(test)
            plans += [self.ordered(chosen - self.heavy), self.ordered(chosen & self.heavy)]
            if seconds <= 0:
                break
        return [plan for plan in plans if plan]

    def ordered(self, tests: set[str]) -> list[str]:
        """Returns tests below a second, then the others; by file, quick files first."""
        total: dict[str, float] = collections.defaultdict(float)
        for test in tests:
            total[test.partition("::")[0]] += self.seconds[test]
        in_order = [test for test in self.seconds if test in tests]
        return sorted(
            in_order, key=lambda test: (self.seconds[test] >= 1.0, total[test.partition("::")[0]])
        )


def test_files(root: pathlib.Path, names: Iterable[str]) -> list[str]:
    """Returns the test files that are named, and those in folders that are."""
    found: list[pathlib.Path] = []
    for name in names:
        path = root / name
        if not path.exists():
            raise SystemExit(f"error: expected tests in {name}, got no such file or folder")
        found += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    return [path.relative_to(root).as_posix() for path in dict.fromkeys(found)]


def executed_by_tests(copies: Copies, names: Sequence[str], *, long: bool) -> Executed:
    """Runs the tests with coverage, but files of which a result for this library is stored."""
    root = copies.first
    common = digest(root, "pate_tf", "tests") + str(long)
    folder = CACHE / "coverage"
    folder.mkdir(parents=True, exist_ok=True)
    files = test_files(root, names)

    def stored(file: str) -> pathlib.Path:
        key = hashlib.sha256(f"{common} {file} ".encode() + (root / file).read_bytes())
        return folder / f"{key.hexdigest()[:32]}.json"

    def run(file: str) -> None:
        if stored(file).exists():
            return
        tree = copies.free.get()
        output = tree.parent / "output"
        output.unlink(missing_ok=True)
        options = ["--long"] if long else []
        started = time.monotonic()
        code = copies.child(tree, "_record", file, str(output), *options, seconds=7200)
        if code == 0:
            shutil.move(output, stored(file))
        log = (tree.parent / "log").read_text(errors="replace")
        copies.free.put(tree)
        if code != 0:
            raise SystemExit(f"error: {file} ended with {code}:\n{log[-2000:]}")
        print(f"  {time.monotonic() - started:6.1f} s  {file}", flush=True)

    print(f"which of {len(files)} test files execute what:", flush=True)
    at_once(run, files, copies.free.qsize())
    executed = Executed({}, set(), {})
    for file in files:
        values = json.loads(stored(file).read_text())
        executed.add(values)
        if values["code"] not in (0, 5):  # 5: all its tests are long
            print(f"  not used, they fail without a mutant: {file} {values['failed']}")
    return executed


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a mutant.

    Attributes:
        verdict: "killed", "timeout", "survived" or "gone".
        place: file and line where it stood.
        killer: the test that found it.
        seconds: that all its tests took.
        tests: how many were to be run.
        covering: how many execute its statement.
    """

    verdict: str
    place: str = ""
    killer: str = ""
    seconds: float = 0.0
    tests: int = 0
    covering: int = 0


def judged(copies: Copies, site: Site, executed: Executed, seconds: float, control: bool) -> Result:
    """Runs tests against a mutant until one fails; the unchanged file as a control."""
    plans = executed.plans(site, seconds)
    counts = {"tests": sum(map(len, plans)), "covering": len(executed.at(site))}
    tree = copies.free.get()
    path = tree / site.change.file
    source, times = path.read_bytes(), path.stat()
    started = time.monotonic()
    verdict, killer = "survived", ""
    try:
        path.write_bytes(source if control else site.mutated(source))
        # Compiled files are told from stale ones by size and second.
        pathlib.Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        for plan in plans:
            verdict, killer = tried(copies, tree, {name: executed.seconds[name] for name in plan})
            if verdict != "survived":
                break
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        pathlib.Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        copies.free.put(tree)
    taken = round(time.monotonic() - started, 1)
    return Result(verdict, site.place, killer, taken, **counts)


def tried(copies: Copies, tree: pathlib.Path, seconds: dict[str, float]) -> tuple[str, str]:
    """Runs tests in one process; returns the verdict and the test that gave it."""
    slowest = max(seconds.values())  # the first of a file may have to prepare what all share
    limits = dict.fromkeys(seconds, 30.0 + 10.0 * slowest)
    plan, output = tree.parent / "plan", tree.parent / "output"
    plan.write_text(json.dumps(limits))
    output.write_text("{}")
    patience = 120 + 10 * sum(seconds.values())
    code = copies.child(tree, "_attempt", str(plan), str(output), seconds=patience)
    noted = json.loads(output.read_text() or "{}")
    if code in (0, 5):
        return "survived", ""
    if "failed" in noted:
        return "killed", noted["failed"]
    if code in (1, None):  # by faulthandler, or from here
        return "timeout", noted.get("running", "the import")
    return "killed", noted.get("running", f"the import (exit code {code})")


def table(sample: Sample, results: dict[str, Result]) -> str:
    """Returns counts by module of those that have a result."""
    columns = ("killed", "timeout", "survived", "gone")
    lines = [f"{'module':<16}{'drawn':>7}" + "".join(f"{c:>10}" for c in columns) + "  explained"]
    for module in (*MODULES, "all"):
        names = [
            mutant.name
            for mutant in sample.of(None if module == "all" else module)
            if mutant.name in results
        ]
        if names:
            counts = collections.Counter(results[name].verdict for name in names)
            survivors = {name for name in names if results[name].verdict == "survived"}
            share = (counts["killed"] + counts["timeout"]) / len(names)
            lines.append(
                f"{module:<16}{len(names):>7}"
                + "".join(f"{counts[c]:>10}" for c in columns)
                + f"{len(survivors & {*sample.explained}):>11}  {share:7.1%} found"
            )
    return "\n".join(lines)


def digest(root: pathlib.Path, *folders: str) -> str:
    """Returns a digest of the modules in folders, without tests."""
    state = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        if not path.name.startswith("test_"):
            state.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return state.hexdigest()[:32]


def read_results(path: pathlib.Path, version: str) -> dict[str, Result]:
    """Returns the results so far, by name; refuses those of another library."""
    if not path.exists():
        return {}
    values = json.loads(path.read_text())
    if values["library"] != version:
        raise SystemExit(
            f"error: expected results of this library in {path}, got those of another: name a new "
            "file by --resume"
        )
    return {name: Result(**each) for name, each in values["results"].items()}


def write_results(path: pathlib.Path, version: str, results: dict[str, Result]) -> None:
    """Writes the results whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: dataclasses.asdict(each) for name, each in results.items()}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"library": version, "results": rows}, indent=1) + "\n")
    partial.replace(path)


def run(arguments: argparse.Namespace) -> int:
    """Tries the mutants and writes the results as they come."""
    sample = Sample.read(arguments.sample)
    output = arguments.resume or CACHE / ("control.json" if arguments.control else "results.json")
    lock = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="mutants_", ignore_cleanup_errors=True) as scratch:
        os.chmod(scratch, 0o755)  # tests start processes of another user
        copies = Copies(pathlib.Path(scratch), arguments.jobs)
        version = digest(copies.first, "pate_tf")
        results = read_results(output, version)
        again = ("survived", "gone") if arguments.survivors else ()
        wanted = [
            mutant
            for mutant in sample.of(arguments.only)
            if mutant.name not in results or results[mutant.name].verdict in again
        ]
        library = Library(copies.first)
        executed = executed_by_tests(copies, arguments.tests or TESTS, long=arguments.long)
        started = time.monotonic()

        def one(mutant: Mutant) -> None:
            site = library.locate(mutant.change, sample.renamed)
            result = Result("gone")
            if site is not None:
                result = judged(copies, site, executed, arguments.seconds, arguments.control)
            with lock:
                results[mutant.name] = result
                write_results(output, version, results)
                print(
                    f"{mutant.name:<20}{result.verdict:<9}{result.seconds:6.1f} s  {result.place}"
                    f"  {mutant.change.before!r} -> {mutant.change.after!r}  {result.killer}",
                    flush=True,
                )

        at_once(one, wanted, arguments.jobs)
    taken = time.monotonic() - started
    print(f"{len(wanted)} mutants in {taken:.0f} s; results in {output}")
    print(table(sample, results))
    return 0


def write_sample(arguments: argparse.Namespace) -> int:
    """Draws the sample and writes it, once."""
    if arguments.sample.exists():
        raise SystemExit(f"error: expected no sample in {arguments.sample} yet: it is drawn once")
    modules = module_of_files(ROOT)
    modules = {file: name for file, name in modules.items() if arguments.only in (None, name)}
    sites = Library(ROOT).sites
    drawn = draw(sites, modules, number=arguments.number, seed=arguments.seed)
    numbers: collections.Counter[str] = collections.Counter()
    rows = []
    for module, site in drawn:
        ast.parse(site.mutated((ROOT / site.change.file).read_bytes()))
        numbers[module] += 1
        name = f"{module}-{numbers[module]:03}"
        rows.append({"name": name, "module": module, **dataclasses.asdict(site.change)})
    values = {
        "seed": arguments.seed,
        "renamed": {},
        "moved": {},
        "explained": {},
        "mutants": rows,
    }
    arguments.sample.write_text(json.dumps(values, indent=1) + "\n")
    places = sum(site.change.file in modules for site in sites)
    print(f"{len(rows)} of {places} possible mutants in {arguments.sample}: {dict(numbers)}")
    return 0


def find(arguments: argparse.Namespace) -> int:
    """Prints the mutants that are gone, each with what reads most like it; 1 if there are any."""
    sample = Sample.read(arguments.sample)
    library = Library(ROOT)
    gone, elsewhere = 0, 0
    for mutant in sample.of(arguments.only):
        site = library.locate(mutant.change, sample.renamed)
        if site is None:
            gone += 1
            print(f"gone: {mutant.name} {dataclasses.asdict(mutant.change)}")
            near = library.nearest(with_new_words(mutant.change, sample.renamed))
            if near is not None:
                print(f'  perhaps "{mutant.name}": {json.dumps(dataclasses.asdict(near))}')
        elif site.change != mutant.change:
            elsewhere += 1
            print(f"now elsewhere: {mutant.name} {mutant.change.file} -> {site.place}")
    print(f"{len(sample.of(arguments.only))} mutants, {elsewhere} elsewhere, {gone} gone")
    return int(gone > 0)


def main() -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--sample", type=pathlib.Path, default=SAMPLE, help="the JSON file")
    shared.add_argument("--only", choices=MODULES, help="one module")

    drawing = commands.add_parser("draw", parents=[shared], help="draw the sample, once")
    drawing.add_argument("--number", type=int, default=320)
    drawing.add_argument("--seed", type=int, default=1)
    drawing.set_defaults(command=write_sample)

    finding = commands.add_parser("find", parents=[shared], help="say which are gone")
    finding.set_defaults(command=find)

    running = commands.add_parser("run", parents=[shared], help="try the mutants")
    running.add_argument("--jobs", type=int, default=1, help="processes at once")
    running.add_argument(
        "--resume",
        type=pathlib.Path,
        help="the results: what stands there is not tried again (build/mutants/results.json)",
    )
    running.add_argument("--survivors", action="store_true", help="try what was not killed again")
    running.add_argument("--tests", action="append", help="a file or folder; may be repeated")
    running.add_argument("--long", action="store_true", help="tests marked long, too")
    running.add_argument("--seconds", type=float, default=120.0, help="of tests for a mutant")
    running.add_argument("--control", action="store_true", help="change nothing: all must survive")
    running.set_defaults(command=run)

    recording = commands.add_parser("_record")
    recording.add_argument("file")
    recording.add_argument("output", type=pathlib.Path)
    recording.add_argument("--long", action="store_true")
    recording.set_defaults(command=lambda given: record(given.file, given.output, long=given.long))

    attempting = commands.add_parser("_attempt")
    attempting.add_argument("plan", type=pathlib.Path)
    attempting.add_argument("output", type=pathlib.Path)
    attempting.set_defaults(command=lambda given: attempt(given.plan, given.output))

    arguments = parser.parse_args()
    return int(arguments.command(arguments))


if __name__ == "__main__":
    sys.exit(main())
