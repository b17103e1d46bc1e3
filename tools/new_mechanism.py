"""Starts a new mechanism: `python -m tools.new_mechanism NAME`, such as `exponential_noisy_max`.

Writes `pate_tf/accounting/mechanisms/NAME.py` from the noisy maximum in
`tests/accounting/toy_mechanisms.py`, imports it in the package, adds a row to the page of
mechanisms, and lists the new name in `tests/frozen.json`. The rest follows from registering the
class: the value of `--mechanism`, flags, calibration, ledger, statement and audit.
"""

import argparse
import ast
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKELETON, CLASS = ROOT / "tests" / "accounting" / "toy_mechanisms.py", "ToyNoisyMax"
PACKAGE = ROOT / "pate_tf" / "accounting" / "mechanisms"
PAGE, HEADING = ROOT / "docs" / "reference" / "mechanisms.md", "| `gaussian_feature_sums` |"


def flag_of(name: str) -> str:
    """Returns the flag of the new mechanism's epsilon, such as `exponential_eps`."""
    return f"{name.split('_')[0]}_eps"


def module_of(name: str, class_name: str) -> str:
    """Returns the source of the new module: the skeleton's imports and its first class, renamed."""
    source = SKELETON.read_text()
    lines = source.splitlines()
    nodes = ast.parse(source).body
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    (toy,) = (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == CLASS)
    first_line = toy.decorator_list[0].lineno
    head = "\n".join(lines[imports[0].lineno - 1 : imports[-1].end_lineno])
    body = "\n".join(lines[first_line - 1 : toy.end_lineno])
    renamed = body.replace(CLASS, class_name).replace("toy_noisy_max", name)
    renamed = renamed.replace("toy_eps", flag_of(name)).replace("Toy noise", "Noise")
    renamed = renamed.replace("of a toy label", "of one label")
    docstring = f'"""{class_name}: say here what it releases, and cite its proof."""'
    return f"{docstring}\n\n{head}\n\n\n@register\n{renamed}\n"


def main() -> int:
    """Writes the files. Refuses a name that is not new or not in lower case with underscores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="in lower case, such as exponential_noisy_max")
    name = parser.parse_args().name
    path = PACKAGE / f"{name}.py"
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", name) or path.exists():
        parser.error(f"{name}: use a new name of lower-case words joined by underscores")
    class_name = "".join(word.capitalize() for word in name.split("_"))
    path.write_text(module_of(name, class_name))
    package = PACKAGE / "__init__.py"
    imported = f"from pate_tf.accounting.mechanisms.{name} import {class_name} as {class_name}\n"
    package.write_text(package.read_text() + imported)
    row = f"| `{name}` | `--{flag_of(name)}` | say here when to choose it |\n"
    PAGE.write_text(PAGE.read_text().replace(HEADING, row + HEADING))
    python = [sys.executable, "-m"]
    subprocess.run([*python, "ruff", "format", "--quiet", path, package], check=True)
    subprocess.run([*python, "ruff", "check", "--fix", "--quiet", path, package], check=True)
    subprocess.run([sys.executable, "tests/test_budget.py"], cwd=ROOT, check=True)
    print(f"wrote {path.relative_to(ROOT)}; change its cost and its noise, then run")
    print("  python -m pytest -q tests/accounting tests/audit tests/cli/test_mechanism_flags.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
