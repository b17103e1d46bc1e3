"""Apache Beam pipelines give bit-identical results to a single process."""

import ast
import contextlib
import dataclasses
import functools
import pathlib
import signal
import traceback
import warnings
from importlib import metadata

import beam_helpers as helpers
import keras
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from script_processes import REPOSITORY, die_at_rename, limit_file_size, run_fresh, run_script

import pate_tf

pytest.importorskip("apache_beam", reason="needs pip install 'pate_tf[beam]', as CI has it")

from pate_tf import beam as pipelines
from pate_tf.accounting.conversions import LATTICE
from pate_tf.beam import summing
from pate_tf.core.reporting import Reporting
from pate_tf.core.sensitive import SensitiveWarning
from pate_tf.data.data_source import DataSource
from pate_tf.release.feature_sums import FeatureSums, Summands, sums_of_records
from pate_tf.representations.catalogue import encoder_of
from pate_tf.run.labeller import Labeller
from pate_tf.teachers.run_folder import described_run

ROWS = helpers.table()


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("table")


@pytest.fixture(scope="module")
def data(here) -> DataSource:
    """The public side, and the private side in two formats, each in two files."""
    source = helpers.write_public(here)
    for ending, write in (("csv", helpers.write_csv), ("parquet", helpers.write_parquet)):
        write(here / f"records-0.{ending}", ROWS[:250])
        write(here / f"records-1.{ending}", ROWS[250:])
    return source


def skipping(data: DataSource) -> DataSource:
    return dataclasses.replace(data, files=dataclasses.replace(data.files, on_bad_record="skip"))


def of_owners(data: DataSource) -> DataSource:
    return dataclasses.replace(data, files=dataclasses.replace(data.files, owner="who"))


def files_of(folder: pathlib.Path) -> set[str]:
    actual = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in actual if "variables.data" not in name}


@pytest.fixture(scope="module")
def alone(here, data) -> dict[str, FeatureSums]:
    """Returns the sums of one process, with and without owners."""
    pool = data.files.load_public().split(40).pool
    return {
        unit: FeatureSums(directory=here / f"one {unit}").fit(
            helpers.examples(data, ROWS, owners=unit == "owner"), pool
        )
        for unit in ("record", "owner")
    }


def assert_same(found: FeatureSums, other: FeatureSums) -> None:
    """Compares to the last bit, except for the unique name of each fit."""
    np.testing.assert_array_equal(found.table, other.table)
    left = [
        {**stored.description, **dict.fromkeys(("records", "source", "steps"))}
        for stored in (found, other)
    ]
    assert left[0] == left[1] and found.encoder_digest == other.encoder_digest


def summed(data, folder, pattern, **given) -> FeatureSums:
    return pipelines.sums(data, directory=folder, private=str(pattern), pool_size=40, **given)


def test_sums_are_labelled_and_a_data_set_without_files_is_refused(here, data, tmp_path):
    summed(data, tmp_path / "run", here / "records-*.csv")
    sums = FeatureSums.load(tmp_path / "run")
    with Labeller(sums, epsilon=8.0, delta=1e-5, accept_forecast=True) as labeller:
        assert len(labeller.label(data.files.load_public().split(40).pool))
        assert labeller.spent().epsilon <= 8.0
    with pytest.raises(ValueError, match="dataset=digits: Beam reads only files"):
        pipelines.sums(DataSource(dataset="digits"), directory=tmp_path / "other")


def test_one_name_is_one_source_and_other_names_are_told_to_the_holder(here, data, tmp_path):
    """Reads the same file by its path, by a pattern and in one process."""
    named = dataclasses.replace(
        data.files, private=here / "records-0.csv", name="Hospital", owner=None
    )
    source = dataclasses.replace(data, files=named)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SensitiveWarning)
        places = (here / "records-0.csv", here / "records-0.c*")
        found = [summed(source, tmp_path / place.name, place) for place in places]
        examples = source.load_private(Reporting())
        pool = source.load_public(Reporting()).split(40).pool
        found.append(FeatureSums(directory=tmp_path / "one").fit(examples, pool))
    assert {sums.source.key for sums in found} == {"name Hospital"}
    unnamed = dataclasses.replace(source, files=dataclasses.replace(named, name=None))
    with pytest.warns(SensitiveWarning, match="used with another source name, name Hospital"):
        summed(unnamed, tmp_path / "unnamed", here / "records-0.csv")


@pytest.fixture
def small_blocks(monkeypatch):
    """Uses several blocks per file, as for records that do not fit into one block."""
    monkeypatch.setattr(summing, "ROWS", 37)
    monkeypatch.setattr(summing, "MIN_MERGED", 5)


@pytest.mark.parametrize(
    ("unit", "pattern", "given"),
    [
        ("record", "records-*.parquet", {}),
        ("owner", "records-?.csv", {}),
        # Each bundle runs twice more, as if its first results had been lost.
        ("owner", "records-*.parquet", {"options": ["--direct_runner_bundle_repeat=2"]}),
        ("record", "records-*.csv", {"options": ["--direct_num_workers=3"]}),
    ],
)
@pytest.mark.usefixtures("small_blocks")
def test_sums_are_those_of_one_process(here, data, alone, tmp_path, unit, pattern, given):
    source = of_owners(data) if unit == "owner" else data
    sums = summed(source, tmp_path / "run", here / pattern, **given)
    assert_same(sums, alone[unit])
    others = {"sensitive/feature_sums/vectors.npz", "sensitive/same_records.json"}
    assert files_of(tmp_path / "run") - others == files_of(here / f"one {unit}") - others
    one, other = described_run(tmp_path / "run"), described_run(here / f"one {unit}")
    assert dataclasses.replace(one, source={}) == dataclasses.replace(other, source={})
    # Stored sums are used for all records. Nobody compares whether the records changed.
    if unit == "record" and not given:
        with pytest.warns(UserWarning, match="They are used, and the private records are not read"):
            again = summed(source, tmp_path / "run", here / "records-0.parquet")
        assert again.digest == sums.digest


@pytest.mark.usefixtures("small_blocks")
def test_moments_without_a_public_file_are_those_of_one_process(here, data, tmp_path):
    files = dataclasses.replace(data.files, public=None, name="table")
    source = dataclasses.replace(data, files=files)
    pool = files.load_public().split(0).pool
    encoder = encoder_of(pool, "bins")
    private = helpers.examples(source, ROWS, owners=False)
    total = sums_of_records(private, encoder, Summands.of(encoder, pool))
    several = summed(source, tmp_path / "several", here / "records-*.csv")
    np.testing.assert_array_equal(several.table, total)
    assert several.table.shape[1] == 3 + len(several.table)


TARGETS = {
    "class": ('label = "ill"\nclasses = ["no", "yes"]', ("age", "dose"), False),
    "number": ('label = "age"\nlow = 0\nhigh = 100', ("dose",), True),
    "number alone": ('label = "age"\nlow = 0\nhigh = 100', ("dose",), False),
    "labels": ('labels = ["town", "ill"]\nmax_labels = 1', ("age", "dose"), True),
    "labels alone": ('labels = ["town", "ill"]\nmax_labels = 1', ("age", "dose"), False),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.usefixtures("small_blocks")
def test_tables_of_owners_are_those_of_one_process_and_one_owner_moves_them_as_charged(
    tmp_path, name
):
    target, columns, has_pool = TARGETS[name]
    ranges = {"age": "low = 0\nhigh = 100", "dose": "low = -1\nhigh = 1\nmissing = 0.25"}
    lines = [target, *(f"[columns.{each}]\n{ranges[each]}" for each in columns)]
    (tmp_path / "schema.toml").write_text("\n".join(lines))
    answers = ("no", "yes")
    rows = [
        [*row[:2], answers[place % 2], answers[place // 2 % 2], row[4]]
        for place, row in enumerate(helpers.table(300, seed=1))
    ]
    helpers.write_csv(tmp_path / "public.csv", [[*row[:4], ""] for row in rows[:60]])
    files = pipelines.FileSource(
        public=tmp_path / "public.csv" if has_pool else None,
        schema=tmp_path / "schema.toml",
        owner="who",
        name="table",
    )
    theirs = [row for row in rows if row[4] == "owner 7"]
    others = [row for row in rows if row[4] != "owner 7"]
    assert len(theirs) > 1
    replaced = [[99.0, -0.9, "yes", "yes", "owner 7"]] * 40
    tables = []
    for number, those in enumerate((theirs, [], replaced)):
        folder = tmp_path / str(number)
        folder.mkdir()
        helpers.write_csv(folder / "rows.csv", others + those)
        helpers.write_parquet(folder / "rows.parquet", those + others)
        source = DataSource(files=dataclasses.replace(files, private=folder / "rows.csv"))
        alone = FeatureSums(directory=folder / "one")
        pool = source.load_public(Reporting()).split(40 if has_pool else 0).pool
        alone.fit(source.load_private(Reporting()), pool)
        options = ["--direct_runner_bundle_repeat=1"]
        beam = summed(source, folder / "beam", folder / "rows.parquet", options=options)
        np.testing.assert_array_equal(beam.table, alone.table)
        assert beam.unit == "owner" and beam.table.any()
        tables.append(beam.table / LATTICE)
    with_owner, without, other = tables
    assert 0.3 < np.linalg.norm(with_owner - without) <= 1.0  # Propositions D11 and D12
    assert 0.3 < np.linalg.norm(with_owner - other) <= (2.0 if has_pool else 2.0**0.5)


def test_workers_encode_by_a_model_that_mixes_inputs_as_one_process_does(here, data, tmp_path):
    """The model gets one record at a time, also in the graph that workers load."""
    public = data.files.load_public()
    inputs = keras.Input(public.dataset.input_shape)
    model = keras.Model(inputs, inputs + keras.ops.max(inputs, axis=0, keepdims=True))
    model.save(tmp_path / "mixes.keras")
    name = f"encoder:{tmp_path}/mixes.keras"
    sums = summed(data, tmp_path / "workers", here / "records-*.csv", representation=name)
    alone = FeatureSums(directory=tmp_path / "alone", representation=name)
    records = helpers.examples(data, ROWS, owners=False)
    assert_same(sums, alone.fit(records, public.split(40).pool))
    few = records.inputs[:8]
    one_by_one = np.concatenate([sums.encoder.features(row[None]) for row in few])
    np.testing.assert_array_equal(sums.encoder.features(few), one_by_one)


BAD = (
    [1.0, 0.0, "A"],  # too few fields
    [1.0, 0.0, "A", "no", "x", "more"],
    ["nan", 0.0, "A", "no", "x"],
    [1.0, "inf", "A", "no", "x"],
    ["", 0.0, "A", "no", "x"],
    ["old", 0.0, "A", "no", "x"],
    [1.0, 0.0, "A", "maybe", "x"],
    [1.0, 0.0, "A", "", "x"],
)


def test_records_that_do_not_fit_are_refused_or_left_out(here, data, alone, tmp_path):
    rows = list(ROWS)
    for place, bad in enumerate(BAD):
        rows.insert(50 * place, bad)
    helpers.write_csv(tmp_path / "bad.csv", rows)
    with pytest.raises(ValueError, match="contains records that do not fit the schema"):
        summed(data, tmp_path / "run", tmp_path / "bad.csv")
    assert not (tmp_path / "run" / "sensitive" / "feature_sums").exists()
    sums = summed(skipping(data), tmp_path / "run", tmp_path / "bad.csv")
    np.testing.assert_array_equal(sums.table, alone["record"].table)
    assert sums.num_records == len(rows) and sums.description["left_out"] == len(BAD)
    # An owner is required, too.
    helpers.write_csv(tmp_path / "bad.csv", [*ROWS, [*ROWS[0][:4], ""]])
    sums = summed(skipping(of_owners(data)), tmp_path / "owners", tmp_path / "bad.csv")
    np.testing.assert_array_equal(sums.table, alone["owner"].table)


def test_a_quotation_mark_swallows_no_record_of_others(data, tmp_path):
    path = tmp_path / "rows.csv"
    helpers.write_csv(path, ROWS)
    lines = path.read_text().splitlines()
    first, rest = lines[40].split(",", 1)
    lines[5] = f'"{lines[5]}'
    lines[40] = f'{first}",{rest}'
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"ends in line 41 has 36 lines and may contain other"):
        summed(skipping(data), tmp_path / "run", path)
    assert not (tmp_path / "run" / "sensitive" / "feature_sums").exists()


def test_how_many_records_do_not_fit_is_told_in_sensitive_alone(here, data, tmp_path):
    """Two tables that differ in one record: all public or printed output is the same."""
    shown, stored = [], []
    for name, first in (("fits", ROWS[0]), ("does not", ["old", *ROWS[0][1:]])):
        helpers.write_csv(tmp_path / "rows.csv", [first, *ROWS[1:]])
        texts = []
        sums = pipelines.sums(
            skipping(data),
            directory=tmp_path / name,
            private=str(tmp_path / "rows.csv"),
            pool_size=40,
            reporting=Reporting(note=texts.append, warn=texts.append),
        )
        stored.append(sums.description["left_out"])
        shown.append(([text.replace(name, "") for text in texts], sums.num_records))
        assert "sensitive/feature_sums/description.json" in texts[0]
    assert stored == [0, 1] and shown[0] == shown[1] and shown[0][1] == len(ROWS)


def test_an_error_of_a_library_in_a_worker_quotes_no_record(here, data, tmp_path, monkeypatch):
    def blocks(source, span):
        yield from real(source, span)
        np.array(["Ms Who"]).astype(float)

    real = summing.TableSource.blocks
    monkeypatch.setattr(summing.TableSource, "blocks", blocks)
    with pytest.raises(ValueError, match="private records can't be read: ValueError") as refused:
        summed(data, tmp_path, here / "records-0.csv")
    assert "Ms Who" not in "".join(traceback.format_exception(refused.value))


def test_each_bad_record_alone_decides(data):
    """The decision never depends on neighbors or on the order."""
    source = summing.TableSource(data, "unused", data.files.load_public().dataset)
    rows = [row for row in BAD if len(row) == 5] + [list(row) for row in ROWS[:10]]
    alone = [_read(source, [row]) for row in rows]
    assert list(map(len, alone)) == [0] * 6 + [1] * 10
    order = np.random.default_rng(0).permutation(len(rows))
    together = _read(source, [rows[place] for place in order])
    np.testing.assert_array_equal(together, np.concatenate([alone[row] for row in order]))


def _read(source, rows) -> np.ndarray:
    columns = {name: [str(row[place]) for row in rows] for place, name in enumerate(helpers.NAMES)}
    return source._block(columns, np.ones(len(rows), np.bool_), "path").inputs


def test_workers_may_share_a_folder_of_a_remote_file_system(here, data, alone, tmp_path):
    """Objects without folders, as on gs:// and s3://; no temporary files remain."""
    kept = tmp_path / "kept"
    kept.mkdir()
    store = helpers.object_store(kept)
    source = of_owners(data)
    pattern = here / "records-*.parquet"
    sums = summed(source, tmp_path / "run", pattern, work_dir=f"{store.scheme()}://bucket/work")
    assert_same(sums, alone["owner"])
    assert not list(kept.iterdir()) and not list(tmp_path.rglob("*beam*"))
    own = tmp_path / "own"
    sums = summed(source, tmp_path / "other", pattern, work_dir=str(own))
    assert_same(sums, alone["owner"])
    assert not list(own.iterdir())
    for place in ("nowhere://bucket/work", "s3://bucket/work", str(here / "public.csv")):
        with pytest.raises(ValueError, match="is not a writable folder") as said:
            summed(source, tmp_path / "third", pattern, work_dir=place)
        assert "\n" not in str(said.value) and not (tmp_path / "third").exists()


def test_what_does_not_fit_is_one_line(here, data, tmp_path):
    for pattern, given, message in (
        (here / "none-*.csv", {}, "none-.* matches no file"),
        ("s3://bucket/x-*.csv", {}, "private=s3://bucket/x.* can't be listed.*boto3"),
        (here / "schema.toml", {}, "no column|expected a name"),
        (here / "broken.parquet", {}, "broken.parquet is "),
    ):
        if "broken" in str(pattern):
            pattern.write_bytes(b"broken" * 40)
        with pytest.raises(ValueError, match=message) as caught:
            summed(data, tmp_path / "run", pattern, **given)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*beam*"))  # no private data is left behind


# Installed packages.


def test_the_constraints_hold_for_beam_and_silos_together():
    """Each pinned version satisfies the requirements of the extras, Beam and gRPC."""
    root = pathlib.Path(pate_tf.__file__).parents[1]
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(one.partition("==")[0]): one.partition("==")[2] for one in lines}
    setup = ast.parse((root / "setup.py").read_text()).body[-1].value
    given = {word.arg: word.value for word in setup.keywords}
    extras = ast.literal_eval(given["extras_require"])
    requirements = [*ast.literal_eval(given["install_requires"]), *extras["beam"], *extras["silos"]]
    for name in ("apache-beam", "grpcio-tools", "tensorflow"):
        requirements += metadata.requires(name)
    checked = 0
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            pin = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), (str(requirement), pin)
            checked += 1
    assert checked > 50


# Several processes. Some are killed or have a full disk.


FEW = [functools.partial(die_at_rename, 0, before=False), functools.partial(limit_file_size, 9_000)]
MANY = [
    *(
        functools.partial(die_at_rename, number // 2, before=number % 2 == 0)
        for number in range(24)
    ),
    *(functools.partial(limit_file_size, 20**number) for number in range(5)),
]


@pytest.mark.parametrize(
    "setups", [FEW, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_runs_that_are_stopped_leave_nothing_half_and_end_in_the_same_sums(
    here, data, alone, tmp_path, setups
):
    codes = []
    for setup in setups:
        command = ("tests/beam/beam_helpers.py", str(here), "run")
        codes.append(run_script(*command, folder=tmp_path, setup=setup).code)
        with contextlib.suppress(ValueError):  # no sums yet
            assert_same(FeatureSums.load(tmp_path / "run"), alone["record"])
    assert {1, -signal.SIGKILL} <= {*codes} <= {0, 1, -signal.SIGKILL}
    assert_same(summed(data, tmp_path / "run", here / "records-*.csv"), alone["record"])
    assert not list(tmp_path.rglob("*beam*")) and not list(tmp_path.rglob(".writing-*"))


@pytest.mark.parametrize(
    ("times", "message"), [(0, "partial.npz is missing"), (2, "lost or duplicated worker results")]
)
def test_results_that_a_runner_loses_or_repeats_are_refused(
    here, data, tmp_path, monkeypatch, times, message
):
    results = summing._sum_span
    monkeypatch.setattr(summing, "_sum_span", lambda *of: [*results(*of)] * times)
    with pytest.raises(ValueError, match=message):
        summed(data, tmp_path, here / "records-0.csv")


@pytest.mark.long
def test_a_cluster_that_loses_a_worker_gives_the_same_bits(tmp_path):
    pytest.importorskip("distributed", reason="needs pip install 'pate_tf[cluster]'")
    command = (str(REPOSITORY / "tools" / "cluster.py"), str(tmp_path / "cluster"), "50000")
    ended = run_fresh(*command, folder=tmp_path)
    assert ended.code == 0, ended.err[-2000:]
    alone, killed, together = ended.out.splitlines()
    assert killed.startswith("killed worker-2") and "50,000 rows" in together
    assert alone.split(", ")[-1] == together.split(", ")[-1]


PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


@pytest.mark.long
def test_several_processes_give_the_same_bits(here, data, alone, tmp_path):
    sums = summed(of_owners(data), tmp_path, here / "records-*.parquet", options=PROCESSES)
    assert_same(sums, alone["owner"])
