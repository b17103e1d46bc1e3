"""Tables as a notebook renders them."""

import html
from collections.abc import Iterable


def to_html(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table under a title; all texts are escaped.

    Args:
      title: what it is a table of.
      rows: the texts of each, the first of them its name.
    """
    lines = [f"<p><strong>{html.escape(title)}</strong></p>", "<table>"]
    for name, *values in rows:
        cells = "".join(f"<td>{html.escape(value)}</td>" for value in values)
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    return "\n".join([*lines, "</table>"])
