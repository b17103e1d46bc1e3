"""Searches released files for private values: rows and columns, as bytes and as text. SENSITIVE."""

import collections
import io
import pathlib
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

WINDOW: Final = 48  # consecutive values of a row or column that are looked for
FEWEST: Final = 3  # values of a row; fewer occur by chance
MOST: Final = 50_000  # windows of one table, evenly spaced
BITS: Final = 40  # of information, about, that a window needs not to occur by chance
TOKENS: Final = 8  # consecutive cells of a table of text
CHARACTERS: Final = 16  # of different cells of a window
LETTERS: Final = 8  # of a single cell
TOKEN: Final = re.compile(r"[^\s,;:|\"'\[\]{}<>()=]+")


class PrivateBytes:
    """Windows of private arrays, to be found in the bytes of files at any offset."""

    def __init__(self) -> None:
        self._needles: dict[int, list[tuple[int, bytes, str]]] = {}
        self.number = 0

    def add_table(self, values: npt.NDArray[Any], name: str) -> None:
        """Adds rows and columns of a table `[num_rows, ...]`."""
        table = values.reshape(len(values), -1)
        if values.dtype.kind not in "iuf" or not table.size:
            return
        width = min(table.shape[1], WINDOW)
        if width >= FEWEST:
            start = (table.shape[1] - width) // 2
            self._add(table[_spaced(len(table)), start : start + width], f"a row of {name}")
        self.add_series(np.ascontiguousarray(table.T), f"a column of {name}")

    def add_series(self, values: npt.NDArray[Any], name: str) -> None:
        """Adds consecutive values of the last axis."""
        width = min(values.shape[-1] if values.ndim else 0, WINDOW)
        if values.dtype.kind in "iuf" and width >= FEWEST:
            whole = values[..., : values.shape[-1] // width * width].reshape(-1, width)
            self._add(whole[_spaced(len(whole))], name)

    def _add(self, windows: npt.NDArray[Any], name: str) -> None:
        forms = {np.dtype(one) for one in ("f4", "f8", windows.dtype.str)}
        with np.errstate(all="ignore"):
            if np.array_equal(windows, np.rint(windows)) and np.abs(windows).max() < 2**31:
                small = ("u1",) if windows.min() >= 0 and windows.max() < 256 else ()
                forms |= {np.dtype(one) for one in ("i8", "i4", *small)}
            windows = windows[is_telling(windows)]
            self.number += len(windows)
            for form in forms:
                data = np.ascontiguousarray(windows.astype(form))
                size = data.shape[1] * form.itemsize // 8 * 8
                if not (len(data) and size):
                    continue
                data = data.view(np.uint8).reshape(len(data), -1)[:, :size].copy()
                words = data.view("<u8")
                # A window is looked up by that of its words which fewest windows have.
                unique, place, often = np.unique(words, return_inverse=True, return_counts=True)
                often[unique == 0] = words.size + 1
                offsets = often[place.reshape(words.shape)].argmin(axis=1)
                for row, offset in enumerate(offsets.tolist()):
                    key = int(words[row, offset])
                    needle = (8 * offset, data[row].tobytes(), name)
                    self._needles.setdefault(key, []).append(needle)

    def found_in(self, content: bytes) -> str | None:
        """Returns what stands in a file; None if nothing does."""
        keys = np.array(sorted(self._needles), "<u8")
        for shift in range(min(8, len(content)) if len(keys) else 0):
            words = np.frombuffer(content, "<u8", (len(content) - shift) // 8, shift)
            nearest = keys[np.minimum(np.searchsorted(keys, words), len(keys) - 1)]
            for place in np.flatnonzero(nearest == words).tolist():
                for offset, needle, name in self._needles[int(words[place])]:
                    start = shift + 8 * place - offset
                    if start >= 0 and content[start : start + len(needle)] == needle:
                        return name
        return None


class PrivateText:
    """Cells of a private table as text: rows, columns, and single cells that are words."""

    def __init__(self) -> None:
        self._windows: dict[int, dict[tuple[str, ...], str]] = collections.defaultdict(dict)
        self.number = 0

    def add_table(self, columns: Sequence[Sequence[str]], known: Iterable[str]) -> None:
        """Adds a table by its columns.

        Args:
            columns: the cells of each.
            known: cells that are public, such as categories of a schema.
        """
        public = set(known)
        for cells in columns:
            pieces = [cells[start : start + TOKENS] for start in range(0, len(cells), TOKENS)]
            for piece in pieces:
                self._add(TOKEN.findall(" ".join(piece)), CHARACTERS, "a column of private cells")
            for cell in set(cells) - public:
                if len(re.findall(r"[^\W\d_]", cell)) >= LETTERS:
                    self._add(TOKEN.findall(cell), 0, "a private cell")
        for row in zip(*columns, strict=True):
            tokens = TOKEN.findall(" ".join(row))[:TOKENS]
            if len(tokens) >= FEWEST:
                self._add(tokens, CHARACTERS, "a row of private cells")

    def _add(self, tokens: Sequence[str], characters: int, name: str) -> None:
        if tokens and sum(map(len, set(tokens))) >= characters:
            self._windows[len(tokens)][tuple(tokens)] = name
            self.number += 1

    def found_in(self, content: bytes) -> str | None:
        """Returns what stands in a file of text; None if nothing does, or it is no text."""
        try:
            tokens = TOKEN.findall(content.decode())
        except UnicodeDecodeError:
            return None
        for length, windows in self._windows.items():
            for start in range(len(tokens) - length + 1):
                name = windows.get(tuple(tokens[start : start + length]))
                if name is not None:
                    return name
        return None


def is_telling(windows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each window has about `BITS` bits of information, `[num_windows]`.

    A fraction or a large number counts 20 bits, once; a small whole number 2 where it is not the
    most frequent value of its window.
    """
    ordered = np.sort(windows.astype(np.float64), axis=1)
    is_new = np.diff(ordered, axis=1, prepend=np.nan) != 0.0
    is_long = (ordered != np.rint(ordered)) | (np.abs(ordered) >= 256.0)
    common = ordered[:, ordered.shape[1] // 2, None]
    bits = 20 * (is_new & is_long).sum(axis=1) + 2 * (~is_long & (ordered != common)).sum(axis=1)
    return np.asarray(bits >= BITS)


def contents(path: pathlib.Path) -> Iterator[bytes]:
    """Yields a file's bytes, and those of the members of an archive."""
    content = path.read_bytes()
    yield content
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                yield archive.read(name)


def _spaced(number: int) -> npt.NDArray[np.int64]:
    return np.unique(np.linspace(0, number - 1, min(number, MOST)).astype(np.int64))
