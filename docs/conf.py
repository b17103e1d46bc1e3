"""Sphinx configuration of the guide. `python3 make.py docs` writes it to build/docs."""

import pathlib
import re
import sys
from typing import Any

from sphinx.application import Sphinx

HERE = pathlib.Path(__file__).resolve().parent
ARRAY = re.compile(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[(\w+)\]\]")
sys.path.insert(0, str(HERE.parent))

project = "pate_tf"
extensions = [
    "myst_nb",  # with myst_parser; notebooks keep their outputs
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
copybutton_prompt_text = ">>> |\\.\\.\\. |\\$ "
copybutton_prompt_is_regexp = True
html_theme = "furo"
html_title = "pate_tf"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["guide.css"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests run the notebooks
nb_output_stderr = "remove"

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
napoleon_use_ivar = True  # `Attributes:` of a dataclass describes its fields
napoleon_attr_annotations = False


def from_markdown(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Converts names in single backticks to code, and escapes stars and bars elsewhere."""
    parts = re.split(r"`([^`]+)`", "\n".join(lines))
    parts[::2] = [re.sub(r"([*|])", r"\\\1", text) for text in parts[::2]]
    # The escaped space lets a letter follow: `Record`s.
    parts[1::2] = [f"``{code}``\\ " for code in parts[1::2]]
    lines[:] = "".join(parts).split("\n")


def with_short_arrays(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, *signature: str | None
) -> tuple[str | None, ...]:
    """Shortens NumPy's array types to `ndarray[int64]`; docstrings contain the shapes."""
    return tuple(part and ARRAY.sub(r"ndarray[\1]", part) for part in signature)


def is_scikit_learns(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Skips methods that scikit-learn adds to an estimator."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Sphinx) -> None:
    """Connects the functions above to Sphinx."""
    app.connect("autodoc-process-docstring", from_markdown, priority=100)
    app.connect("autodoc-process-signature", with_short_arrays)
    app.connect("autodoc-skip-member", is_scikit_learns)
