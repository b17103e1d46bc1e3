"""Names that may stand in files and certificates."""

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(name: object, what: str) -> str:
    """Returns a name that may stand in files and certificates.

    Raises:
      ValueError: unless it is 1 to 64 letters, digits, dots, hyphens or underscores and begins
        with a letter or digit.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{what}: expected 1 to 64 letters, digits, dots, hyphens or underscores, got others"
        )
    return name
