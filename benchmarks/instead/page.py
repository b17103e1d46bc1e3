"""What docs/notes/instead.md shows: cells from several runs, stored in docs/notes/instead.json.

All cells of a data set take hours. A run that measured a few of them puts these in the place of the
earlier ones and leaves the others as they are, each with its command and date.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.instead import picture
from benchmarks.instead.methods import METHODS
from pate_tf.core import artifacts

RECORD: Final = "instead.json"
OF_A_ROW: Final = ("method", "title", "epsilon", "accuracy", "seconds", "seconds_shared")
OF_A_CELL: Final = ("accuracy", "epsilon", "labels", "mechanism", "labels_right", "seconds")

Row = dict[str, Any]


def publish(results: Mapping[str, Any], docs_dir: pathlib.Path) -> None:
    """Puts what was measured into the record, the page and the picture of its data set.

    Args:
        results: `dataset`, `kind`, `command`, `date` and `rows` of a run.
        docs_dir: holds `instead.md`, with marks of the data set, and `instead.json` if any was
            published.

    Raises:
        ValueError: if the page has no such marks.
    """
    name, page, record = results["dataset"], docs_dir / "instead.md", docs_dir / RECORD
    begin, end = f"<!-- measured: {name} -->\n", f"<!-- end: {name} -->\n"
    text = page.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"docs_dir: expected {begin.strip()} and {end.strip()} in {page}")
    known = artifacts.read_json(record) if record.exists() else {}
    rows = merged(known.get(name, []), results)
    artifacts.write_json(record, {**known, name: rows})
    file = f"pictures/instead_{name}.png"
    picture.save(docs_dir / file, name, rows)
    before, after = text.split(begin)[0], text.split(end)[1]
    artifacts.write_text(
        page, before + begin + _shown(name, results["kind"], rows, file) + end + after
    )


def merged(known: Sequence[Row], results: Mapping[str, Any]) -> list[Row]:
    """Returns rows of a record with those of a run in the place of the same method and epsilon."""
    new = [
        {
            **{field: row[field] for field in OF_A_ROW},
            "repetitions": [
                {field: cell[field] for field in OF_A_CELL if field in cell}
                for cell in row["repetitions"]
            ],
            "command": results["command"],
            "date": results["date"],
        }
        for row in results["rows"]
    ]
    still = (row for row in known if row["method"] in METHODS)
    places = {(row["method"], row["epsilon"]): row for row in (*still, *new)}
    order = list(METHODS)
    return sorted(
        places.values(), key=lambda row: (order.index(row["method"]), row["epsilon"] or 0.0)
    )


def _shown(name: str, kind: str, rows: Sequence[Row], file: str) -> str:
    repetitions = max(len(row["repetitions"]) for row in rows)
    repeated = f" --repetitions={repetitions}" if repetitions > 1 else ""
    missing = [
        one.title
        for key, one in METHODS.items()
        if one.by_default and one.fits(kind) and key not in {row["method"] for row in rows}
    ]
    unmeasured = f"Not measured yet: {'; '.join(missing)}.\n\n" if missing else ""
    published = picture.sources(name)
    if published:
        published = f"Published elsewhere, drawn as stars, not measured here:\n\n{published}\n"
    return (
        f"\n{picture.table(rows)}\n`python -m benchmarks.instead --dataset={name}{repeated}`, a "
        f"few cells at a time, the last on {max(row['date'] for row in rows)}; seconds beside "
        f"other work.\n\n![error against epsilon, {name}]({file})\n\n{unmeasured}{published}"
    )
