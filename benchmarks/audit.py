"""Lower bounds on every mechanism by `pate audit mechanism`: `python -m benchmarks.audit`.

`--publish` writes docs/notes/audit_results.json and its page.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.harness import DELTA, markdown_table, provenance
from pate_tf.core import artifacts

DOCS = pathlib.Path(__file__).parents[1] / "docs" / "notes"
MECHANISMS = {
    "laplace_noisy_max": ("--lap_scale=20",),
    "permute_and_flip": ("--lap_scale=20",),
    "exponential_mechanism": ("--lap_scale=20",),
    "gaussian_noisy_max": ("--sigma=40",),
    "gaussian_histogram": ("--sigma=40",),
    "confident_gaussian_noisy_max": ("--threshold=200", "--sigma_threshold=150", "--sigma=40"),
    "stability_gate": ("--epsilon=1",),
    "gaussian_feature_sums": ("--sigma=7.46126",),
    "laplace_cluster_counts": ("--scale=2", "--num_clusters=20"),
}
OF_A_ROW = ("summary", "group", "claimed", "lower_bound", "num_draws", "control_draws", "outcome")


def main() -> None:
    """Audits, prints, and publishes if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=MECHANISMS, default=list(MECHANISMS))
    parser.add_argument("--seconds", type=float, default=120.0, help="for each mechanism")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--docs_dir", type=pathlib.Path, default=DOCS)
    flags = parser.parse_args()
    path = flags.docs_dir / "audit_results.json"
    results = artifacts.read_json(path) if flags.publish and path.exists() else {"rows": {}}
    for name in flags.only:
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            command = [sys.executable, "-m", "pate_tf.cli.main", "audit", "mechanism", name]
            command += [*MECHANISMS[name], f"--delta={DELTA}", f"--seconds={flags.seconds:g}"]
            ended = subprocess.run([*command, f"--json={report}"], stdout=subprocess.DEVNULL)
            if not report.exists():
                raise SystemExit(f"{name}: the audit ended with {ended.returncode}")
            values = json.loads(report.read_text())
        results["rows"][name] = {field: values[field] for field in OF_A_ROW}
    if flags.only:
        results |= {"date": provenance()["date"], "seconds": flags.seconds}
    table = markdown_table(
        [
            {
                "mechanism": f"`{row['summary']}`",
                "queries": f"{row['group']:,}",
                "claimed": f"{row['claimed']:.3g}",
                "at least": f"{row['lower_bound']:.3g}",
                "fraction": f"{row['lower_bound'] / row['claimed']:.0%}",
                "draws": f"{row['num_draws']:,}",
                "half the noise is caught by": f"{row['control_draws']:,}",
            }
            for row in (results["rows"][name] for name in MECHANISMS if name in results["rows"])
        ]
    )
    print(table)
    if flags.publish:
        artifacts.write_json(path, results)
        text = (
            "# What audits found\n\nLower bounds on epsilon at delta 1e-5, confidence 99.9 %, for "
            "the number of queries whose bound is the\nlargest fraction of its claim; "
            "[audits](../how-to/audit.md) says what they mean. A bound on labels holds\nfor noisy "
            f"counts, too.\n\n{table}\n`python -m benchmarks.audit --seconds="
            f"{results['seconds']:g} --publish`, {results['date']}.\n"
        )
        artifacts.write_text(flags.docs_dir / "audit_results.md", text)


if __name__ == "__main__":
    main()
