"""The code blocks of the guide's pages."""

import re
from typing import NamedTuple

from script_processes import REPOSITORY

DOCS = REPOSITORY / "docs"
README = "../README.md"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))

BLOCK = re.compile(r"^(?:<!-- (.*?) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    marker: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*match.groups("")) for match in BLOCK.finditer((DOCS / page).read_text())]
