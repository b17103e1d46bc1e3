"""Draws the rooms of pate_tf from their imports: `python tools/house_picture.py`.

Writes docs/pictures/house.svg. A room stands above all rooms that it imports; what only values of
the public side reach is on the right of the door, the sensitive side on its left. A test compares.
"""

import ast
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "pate_tf"
PICTURE = REPOSITORY / "docs" / "pictures" / "house.svg"

LEFT_OF_THE_DOOR = ("partition", "teachers")
THE_DOOR = ("ledger", "noise", "labelling", "selective_sgd")
RIGHT_OF_THE_DOOR = ("students", "representations", "queries", "serving")
LEFT_OUT = ("__init__", "records")
COLOURS = {"sensitive": "#f6c9c2", "door": "#f4df9c", "public": "#c6e3c3", "both": "#e4e7eb"}
WIDTH, HEIGHT, GAP, FLOOR = 132, 40, 22, 92


def rooms() -> list[str]:
    """The rooms: folders and files of the package."""
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    return sorted(found - set(LEFT_OUT) - {"__pycache__", "py"})


def room_imports() -> dict[str, set[str]]:
    """Which rooms each room imports, itself aside."""
    found: dict[str, set[str]] = {room: set() for room in rooms()}
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if own not in found:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                parts = name.split(".")
                if parts[0] == "pate_tf" and len(parts) > 1 and parts[1] in found:
                    found[own].add(parts[1])
    return {room: below - {room} for room, below in found.items()}


def without_shortcuts(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leaves out an arrow where another way leads to the same room."""

    def reach(room: str) -> set[str]:
        return set().union(imports[room], *(reach(below) for below in imports[room]))

    return {
        room: {one for one in below if not any(one in reach(other) for other in below - {one})}
        for room, below in imports.items()
    }


def floors(imports: dict[str, set[str]]) -> dict[str, int]:
    """How many rooms stand below each, along the longest way down."""
    height: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in height:
            height[room] = max((of(below) + 1 for below in imports[room]), default=0)
        return height[room]

    for room in imports:
        of(room)
    return height


def side(room: str) -> str:
    """Which side of the door a room lies on."""
    if room in LEFT_OF_THE_DOOR:
        return "sensitive"
    if room in THE_DOOR:
        return "door"
    return "public" if room in RIGHT_OF_THE_DOOR else "both"


def drawing() -> str:
    """The picture as SVG; equal imports give equal text."""
    imports = room_imports()
    height = floors(imports)
    top = max(height.values())
    order = {"sensitive": 0, "both": 1, "door": 2, "public": 3}
    by_floor = {
        floor: sorted(
            (room for room in imports if height[room] == floor),
            key=lambda room: (order[side(room)], room),
        )
        for floor in range(top + 1)
    }
    width = max(len(row) for row in by_floor.values()) * (WIDTH + GAP) + GAP
    place: dict[str, tuple[float, float]] = {}
    for floor, row in by_floor.items():
        start = (width - len(row) * (WIDTH + GAP) + GAP) / 2
        for index, room in enumerate(row):
            place[room] = (start + index * (WIDTH + GAP), (top - floor) * FLOOR + 72)
    total = (top + 1) * FLOOR + 50
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{total:g}" '
        f'viewBox="0 0 {width:g} {total:g}" font-family="sans-serif" font-size="14">',
        f'<rect width="{width:g}" height="{total:g}" fill="white"/>',
        '<text x="16" y="26">The rooms of pate_tf: an arrow goes to what is imported.</text>',
    ]
    for index, (name, text) in enumerate(
        (
            ("sensitive", "sensitive side"),
            ("door", "the door"),
            ("public", "public side"),
            ("both", "used by both"),
        )
    ):
        lines.append(
            f'<rect x="{16 + 150 * index}" y="38" width="16" height="16" fill="{COLOURS[name]}" '
            f'stroke="#555"/><text x="{38 + 150 * index}" y="51">{text}</text>'
        )
    for room, below in sorted(without_shortcuts(imports).items()):
        x, y = place[room]
        for other in sorted(below):
            to_x, to_y = place[other]
            lines.append(
                f'<path d="M {x + WIDTH / 2:g} {y + HEIGHT:g} C {x + WIDTH / 2:g} '
                f"{y + HEIGHT + 34:g}, {to_x + WIDTH / 2:g} {to_y - 34:g}, "
                f'{to_x + WIDTH / 2:g} {to_y:g}" fill="none" stroke="#8a929c"/>'
            )
    for room, (x, y) in sorted(place.items()):
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
            f'fill="{COLOURS[side(room)]}" stroke="#555"/><text x="{x + WIDTH / 2:g}" '
            f'y="{y + 25:g}" text-anchor="middle">{room}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawing())
