"""The cost model of `benchmarks.scale`, and what its table says of it."""

import pytest

from benchmarks.scale import model, parts


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_a_model_finds_the_constants_that_sizes_were_made_by(power):
    sizes = [1_000, 4_000, 9_000]
    fixed, each = model.fitted(sizes, [3.0 + 2e-5 * size**power for size in sizes], power)
    assert fixed == pytest.approx(3.0)
    assert each == pytest.approx(2e-5)


def test_what_is_predicted_is_told_apart_from_what_was_fitted():
    small, large = model.SIZES["neighbours"]
    found = {size: {"graph": 1.0, "seconds": 2.0 + size**2 / 1e6, "MiB": 100.0} for size in small}
    found[large[0]] = {"graph": 4.0, "seconds": 2 * (2.0 + large[0] ** 2 / 1e6), "MiB": 80.0}
    *rows, _, words = model.report("neighbours", found).splitlines()
    assert rows[0] == "| inputs | seconds | predicted | MiB | predicted | graph |"
    assert "%" not in "".join(rows[2:-1])
    assert "(-50%)" in rows[-1] and "(+25%)" in rows[-1]
    assert words.startswith("seconds = 2 + 1e+06 (size / 1,000,000) ** 2; MiB = 100 +")


def test_synthetic_records_are_the_same_in_memory_and_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART", 7)
    inputs, labels = parts.synthetic(20, seed=3)
    mapped, same = parts.synthetic(20, seed=3, path=tmp_path / "records.npy")
    assert inputs.shape == (20, parts.FEATURES)
    assert (inputs == mapped).all() and (labels == same).all()
