"""What grows with what: a cost model fitted on small sizes and held against larger ones.

`python -m benchmarks.scale [--only=teachers,ledger,pool,neighbours,hosts] [--folder=runs/scale]`

- `teachers`: ridge teachers of ten records each on 64 numbers, trained, saved, and asked 1,000
  queries through the labeller and its ledger; at most 100,000 of them, with a million records.
- `ledger`: answers kept and verified, at most a million.
- `pool`: a contrastive representation of up to 60,000 images of 28 x 28, and their features; the
  networks do `STEPS` steps, as memory does not depend on how many, and seconds a step are constant.
- `neighbours`: the graph that labels are spread over, which compares all inputs with all.
- `hosts`: what the chief of a cluster does for each network that a worker trains, 240 images of
  28 x 28 each, and what one worker does for one.
- `approximate`: the ten nearest of each of up to a million inputs, whose features lie in shards, by
  faiss (`pip install faiss-cpu`; no part of pate_tf). Asked for by `--only`.

Each size runs in a process of its own. Seconds are those of all cores together, which other work
on the machine changes little. The model is a constant and a power of the size (1 for most; 2 where
all are compared with all, 1.5 for the inverted lists of faiss), fitted to the small sizes by least
squares of relative errors. For larger sizes stands in brackets by how much it is off.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.scale.model import SIZES, report
from benchmarks.scale.parts import MEASURES


def apart(what: str, number: int) -> dict[str, float]:
    """Measures one size in a process of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--child={what}:{number}", f"--folder={folder}"]
        child = subprocess.Popen([sys.executable, "-m", "benchmarks.scale", *flags])
        _, status, used = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"{what} of {number} ended with {os.waitstatus_to_exitcode(status)}")
        found: dict[str, float] = json.loads((pathlib.Path(folder) / "found.json").read_text())
    unit = 2**20 if sys.platform == "darwin" else 2**10  # of ru_maxrss
    found["seconds"] = used.ru_utime + used.ru_stime
    found["MiB"] = used.ru_maxrss / unit
    found["wall"] = time.monotonic() - began
    return found


def main() -> None:
    """Reads the flags, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="teachers,ledger,pool,neighbours,hosts")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/scale"))
    parser.add_argument("--most", type=int, default=10**9, help="the largest size that is run")
    parser.add_argument("--child", help="internal: PART:SIZE measured in this process")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.child:
        what, _, number = asked.child.partition(":")
        found = MEASURES[what](int(number), asked.folder)
        (asked.folder / "found.json").write_text(json.dumps(found))
        return
    for what in asked.only.split(","):
        path = asked.folder / f"{what}.json"  # kept, so that a stopped run goes on
        kept = (
            {int(n): one for n, one in json.loads(path.read_text()).items()}
            if path.exists()
            else {}
        )
        for number in (size for sizes in SIZES[what] for size in sizes):
            if number not in kept and number <= asked.most:
                kept[number] = apart(what, number)
                path.write_text(json.dumps(kept, indent=2) + "\n")
        if all(size in kept for size in SIZES[what][0]):
            print(f"\n{what}\n\n{report(what, kept)}", flush=True)


if __name__ == "__main__":
    main()
