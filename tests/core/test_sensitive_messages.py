"""No message shows private values: refusals, warnings, notes, logs and reprs.

A name is private if its type is private, or if it comes from a function that returns such a type or
is marked SENSITIVE. Everything computed from a private name is private.
"""

import ast
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import pyarrow
import pytest
from data_sets_for_tests import table_dataset

import pate_tf
from pate_tf.core import sensitive
from pate_tf.core.sensitive import Partition, owner_partition
from pate_tf.data.named_function import call_function
from pate_tf.data.schema import schema_of
from pate_tf.data.tables import TextTable

TYPES = {
    *("PrivateExamples", "VoteCounts", "SumsByClass", "Votes", "TrainedTeacher", "Partition"),
    *("Forest", "Digests", "StoredCounts", "AnsweredVotes", "DistinctHistograms"),
    *("StoredSums", "SiloSums", "Shard", "TrainingJob", "LocalState"),
}
PARAMETERS = {"owners", "private", "examples", "votes", "counts", "sums", "assignment"}
# Attributes of private values that are public.
PUBLIC = {
    *("num_teachers", "num_queries", "num_classes", "num_features", "dataset", "unit", "shape"),
    *("ndim", "dtype", "config", "representation", "encoder", "representation_digest"),
    *("encoder_digest", "mechanism", "directory", "folder", "_path", "_vectors_file"),
    *("epsilon_budget", "delta", "round", "dimensions"),
}
CALLS = {"warn", "note", "debug", "info", "warning", "error", "exception", "on_event", "print"}
# Expressions with a private name in messages, and the reason why each is public.
REVIEWED = {
    "len(counts)": "number of queries",
    "number": "number of teachers",
    "len(self)": "number of records; without owners",
    "len(private)": "number of records; without owners",
    "len(inputs)": "number of public images",
    "folder": "of a run",
    "name": "of an argument",
    "path": "of the parameters that a shared training released",
    "' and '.join(differing)": "names of settings",
    "name_of(config.model)": "a setting",
    "_in_words(config)": "settings; their defaults follow from the format and number of records",
    "kind.__name__": "a setting",
    "method": "from public values; a number of records without owners is one",
    "forecast.in_words(majority)": "from public values, and labels of the pool",
    "self.weights.sum()": "number of queries",
    "self.cost_.epsilon": "of the worst case, from public values",
}


def is_of_types(annotation: ast.expr | None) -> bool:
    return annotation is not None and bool(TYPES & set(re.findall(r"\w+", ast.unparse(annotation))))


def is_private_result(function: ast.FunctionDef) -> bool:
    first = (ast.get_docstring(function) or "").split("\n\n")[0]
    is_marked = re.search(r"\bSENSITIVE\b|^Sensitive\b", first)
    return is_of_types(function.returns) or bool(is_marked)


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


class Package:
    """Source files, with the functions in them whose values are private."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.trees = {name: ast.parse(text) for name, text in sources.items()}
        functions = [
            node
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
        ]
        # If several functions have one name, all of them.
        public = {node.name for node in functions if not is_private_result(node)}
        self.private = TYPES | {node.name for node in functions} - public

    def mentions(self, node: ast.AST, names: set[str]) -> bool:
        if isinstance(node, ast.Attribute) and node.attr in PUBLIC:
            return False
        if isinstance(node, ast.Call) and called(node) in ("type", "isinstance"):
            return False
        if isinstance(node, ast.Call) and called(node) in self.private:
            return True
        if isinstance(node, ast.Name):
            return node.id in names
        return any(self.mentions(child, names) for child in ast.iter_child_nodes(node))

    def private_names(self, function: ast.FunctionDef, owner: str) -> set[str]:
        arguments = function.args
        names = {
            each.arg
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            if is_of_types(each.annotation)
            or each.arg in PARAMETERS
            or (each.arg == "self" and owner in TYPES)
        }
        bindings = []
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                bindings += [(target, node.value) for target in node.targets]
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
                bindings.append((node.target, node.value))
            elif isinstance(node, ast.For | ast.comprehension):
                bindings.append((node.target, node.iter))
        for _ in bindings:  # until nothing changes
            before = len(names)
            for target, value in bindings:
                if self.mentions(value, names):
                    names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
            if len(names) == before:
                break
        return names

    def shown(self) -> Iterator[tuple[str, str]]:
        """Yields places where a message shows something private, and the expression."""
        for name, tree in self.trees.items():
            classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            owners = {id(node): each.name for each in classes for node in each.body}
            for function in ast.walk(tree):
                if not isinstance(function, ast.FunctionDef):
                    continue
                names = self.private_names(function, owners.get(id(function), ""))
                for message in self._messages(function):
                    if self.mentions(message, names):
                        yield f"{name}:{message.lineno} {function.name}", ast.unparse(message)

    def _messages(self, function: ast.FunctionDef) -> Iterator[ast.expr]:
        for node in ast.walk(function):
            is_text = function.name in ("__repr__", "__str__") and node is function
            if (isinstance(node, ast.Raise) and node.exc is not None) or is_text:
                texts = [node]
            elif isinstance(node, ast.Call) and called(node) in CALLS:
                texts = list(node.args)
                yield from (text for text in texts if isinstance(text, ast.Name | ast.Attribute))
            else:
                continue
            for text in texts:
                for part in ast.walk(text):
                    if isinstance(part, ast.FormattedValue):
                        yield part.value


def test_no_message_interpolates_what_comes_from_private_values():
    root = pathlib.Path(pate_tf.__file__).parent
    sources = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}
    shown = [f"{where}: {what}" for where, what in Package(sources).shown() if what not in REVIEWED]
    assert shown == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(x: Votes): raise ValueError(f'got {x.labels[0]}')", True),
        ("def f(x: Votes): raise ValueError(f'got {x.num_teachers}')", False),
        ("def f(x): raise ValueError(f'got {x}')", False),
        ("def f(owners):\n for name in owners: warnings.warn(f'got {name}')", True),
        ("def f(owners):\n first = min(owners)\n second = first\n print(second)", True),
        ("def load() -> VoteCounts: ...\ndef f():\n x = load()\n note(f'{x.values.sum()}')", True),
        ("def load():\n '''Returns sums. SENSITIVE.'''\ndef f(): raise E(f'got {load()}')", True),
        ("class Votes:\n def __repr__(self): return f'Votes({self.labels})'", True),
        ("class Votes:\n def __repr__(self): return f'Votes({self.num_teachers})'", False),
    ],
)
def test_the_search_finds_what_is_planted(source, found):
    assert bool(list(Package({"planted": source}).shown())) is found


SECRET = 73_291
TABLE = table_dataset(2, 0.0, 9.0)


def record(**changes):
    record = {"age": "1", "sex": "f", "diagnosis": "a", **changes}
    fields = {name: pyarrow.array([value]) for name, value in record.items()}
    return TextTable(fields=fields, what="file").private(SCHEMA.dataset("own", 1))


COLUMNS = {"age": {"low": 0, "high": 9}, "sex": {"categories": ["f", "m"]}}
SCHEMA = schema_of({"label": "diagnosis", "classes": ["a", "b"], "columns": COLUMNS})


def private(inputs, labels, owners=None):
    return sensitive.PrivateExamples(TABLE, np.asarray(inputs, np.float32), labels, owners)


def reads_private_data(side):
    return int(f"patient {SECRET}")


@pytest.mark.parametrize(
    "call",
    [
        lambda: private([[SECRET, np.inf]], [0]),
        lambda: private([[SECRET]], [0]),
        lambda: private([[1, 2]], [SECRET]),
        lambda: private([[1, 2]], [0.5 + SECRET]),
        lambda: private([[1, 2]], [0], [SECRET + 0.5]),
        lambda: private(np.zeros((SECRET, 2)), [0], np.zeros(SECRET, int)),
        lambda: sensitive.VoteCounts([[-SECRET, 0]]),
        lambda: sensitive.VoteCounts([[SECRET + 0.5, 0]]),
        lambda: sensitive.VoteCounts([[SECRET, 0], [1, 0]]),
        lambda: sensitive.SumsByClass([[SECRET + 0.5]]),
        lambda: sensitive.Votes([[SECRET]], 10),
        lambda: sensitive.Votes([[-SECRET]], 10),
        lambda: Partition(np.array([SECRET]), num_teachers=2),
        lambda: Partition(np.zeros(SECRET, int), num_teachers=2),
        lambda: Partition(np.array([0, 1]), num_teachers=2, unit="owner").numbered(
            np.array([SECRET, SECRET])
        ),
        lambda: owner_partition([SECRET + 0.5], num_teachers=2, seed=0),
        lambda: Partition(np.array([SECRET, 0]), num_teachers=2),
        lambda: record(age=f"{SECRET}x"),
        lambda: record(sex=str(SECRET)),
        lambda: record(diagnosis=str(SECRET)),
        lambda: call_function(reads_private_data, "private", flag="dataset", is_private=True),
    ],
)
def test_a_refusal_of_private_values_shows_none(call):
    with pytest.raises(ValueError) as caught:
        call()
    texts = [str(caught.value)]
    if caught.value.__cause__ is not None or not caught.value.__suppress_context__:
        texts += [str(each) for each in (caught.value.__cause__, caught.value.__context__) if each]
    assert not [text for text in texts if str(SECRET) in text.replace(",", "").replace("_", "")]
