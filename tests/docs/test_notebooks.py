"""The notebooks run from the first cell to the last, as a user runs them."""

import os
import re

import nbclient
import nbformat
import pytest
from script_processes import REPOSITORY

NOTEBOOKS = REPOSITORY / "docs" / "tutorials" / "notebooks"
FEW_STEPS = "20"  # training steps; the notebook of silos uses more by default


def executed(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATE_TF_NOTEBOOK_STEPS", FEW_STEPS)
    paths = (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    return notebook


def shown(notebook):
    """Returns all outputs by type, and the texts of the streams."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    text = "".join(output.get("text", "") for output in outputs)
    return kinds, text


def results_of(cell):
    outputs = cell.get("outputs", [])
    return [output for output in outputs if output.output_type == "execute_result"]


def test_a_csv_becomes_a_published_student(tmp_path, monkeypatch):
    notebook = executed("from_csv.ipynb", tmp_path, monkeypatch)
    kinds, _ = shown(notebook)
    assert kinds.count("image/png") == 1  # accuracy against epsilon
    results = [output.data["text/plain"] for cell in notebook.cells for output in results_of(cell)]
    assert "'passed'" in results  # the audit


def test_ten_silos_answer_refuse_and_teach_a_student(tmp_path, monkeypatch):
    _, text = shown(executed("silos.ipynb", tmp_path, monkeypatch))
    assert "hospital-2: epsilon" in text
    assert "0 answers: query_too_dear" in text
    spent, after = re.search(r"before and after: ([\d.]+) ([\d.]+)", text).groups()
    assert spent == after and float(spent) > 0
    assert "# Privacy statement" in text and "10 silos" in text


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_kept_with_the_outputs_of_one_run(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert all(output.output_type != "error" for cell in cells for output in cell.outputs)
    assert any(results_of(cell) for cell in cells)
