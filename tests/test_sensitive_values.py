"""No `repr` and no `str` shows a sensitive value: a sweep over every dataclass of the library.

A class stands in one of two tables here, so that whoever writes a new one decides.
"""

import dataclasses
import importlib
import logging
import pkgutil

import numpy as np
import pytest

import pate_tf
from pate_tf.core.sensitive import VoteCounts, Votes

# Fields that must not be shown, by class; "*" for all of them.
SENSITIVE = {
    "pate_tf.core.sensitive.PrivateExamples": ("inputs", "labels", "owners", "origin"),
    "pate_tf.core.sensitive.VoteCounts": ("values",),
    "pate_tf.core.sensitive.FeatureSums": ("values",),
    "pate_tf.core.sensitive.Votes": ("labels",),
    "pate_tf.core.record_set.RecordSet": ("digest", "sketch", "num_records"),
    "pate_tf.core.partition.Partition": ("assignment",),
    "pate_tf.ledger.chain.LedgerRow": ("details",),
    "pate_tf.aggregation.labeller.PaidCounts": ("answered",),
    "pate_tf.analysis.smooth_sensitivity.DistinctHistograms": ("rows", "weights"),
    "pate_tf.analysis.release_results.LogCost": ("steps",),
    "pate_tf.models.forest.Forest": ("children", "features", "thresholds", "probabilities"),
    "pate_tf.models.classifier.Estimator": ("fitted",),
    "pate_tf.teachers.training.TeacherState": ("*",),
    "pate_tf.analysis.guarantees.Analysis": ("bounds", "smooth_sensitivity"),
    "pate_tf.analysis.guarantees.DataDependentGuarantee": ("*",),
    "pate_tf.api.analysis.AnalysisReport": ("sensitive",),
    "pate_tf.api.student_run.DistillationReport": (
        "distilled",
        "plurality",
        "plurality_labels",
    ),
    "pate_tf.api.reporting.RunReport": ("*",),
    "pate_tf.selective_sgd.training.LocalState": ("*",),
    "pate_tf.selective_sgd.training.RoundStatistics": ("loss",),
    "pate_tf.selective_sgd.upload.Upload": ("indices", "values"),
    "pate_tf.api.reporting.Table": ("rows", "lines"),
    "pate_tf.api.reporting.TablesReport": ("*",),
    "pate_tf.api.student_training.StudentReport": ("epsilon_data_dependent",),
    "pate_tf.api.teacher_run.Accuracies": ("*",),
}
# Sensitive as a whole, of parts that hide themselves.
OF_PARTS = {
    "pate_tf.analysis.votes.AnsweredVotes": ("counts",),
    "pate_tf.analysis.votes.VoteSource": ("groups", "labels"),
    "pate_tf.api.analysis.PaidQueries": ("source",),
    "pate_tf.api.data.Data": ("private",),
    "pate_tf.aggregation.labeller.PaidCounts": ("counts",),
    "pate_tf.api.analysis.AnalysisReport": ("analysis",),
}
# Classes that hold nothing sensitive.
PUBLIC = {
    *("data.schema.Schema", "data.schema.TableColumn", "api.files.FileSource"),
    "students.evaluation.ByClass",
    *("core.artifacts.RunDirectory", "core.dataset.Dataset", "core.dataset.Examples"),
    *("core.public.PublicExamples", "core.public.PublicSplit", "core.public.Pool"),
    "core.public.PoolLabels",
    "analysis.release_planning._Candidate",
    *("analysis.release_results.SanitisedEpsilon", "analysis.release_results.GateDecision"),
    *(
        "ledger.chain.Head",
        "ledger.ledger.Spending",
        "ledger.chain.StoredAnswer",
    ),
    *("ledger.rollback_guard.AllEnsembles", "ledger.rollback_guard.Missing"),
    *("aggregation.labeller.Labeller", "aggregation.feature_sums.ReleasedSums"),
    *(
        "queries.strategies.clusters.Clusters",
        "queries.propagation.Inferred",
    ),
    *(
        "statement.privacy_statement.Guarantee",
        "statement.privacy_statement.Sanitised",
        "statement.privacy_statement.StatedFacts",
    ),
    "statement.privacy_statement.PrivacyStatement",
    *("data.columns.Column", "data.tfds_source.Source"),
    *("students.evaluation.Accuracy", "students.config.StudentConfig"),
    *("students.config.StudentSettings", "students.catalogue.Student"),
    *("students.config.OutputSettings", "students.config.ComparisonSettings"),
    *("core.settings.Setting", "core.settings.Settings", "cli.student.Places"),
    *("selective_sgd.privacy.Payment", "selective_sgd.privacy._Known"),
    "selective_sgd.privacy.Privacy",
    *("selective_sgd.server.Parameters", "selective_sgd.settings.Settings"),
    *("selective_sgd.roster.Declared", "selective_sgd.roster.Roster"),
    "api.participant.ParticipantRun",
    "api.parameter_server.ParameterServerRun",
    "api.parameter_server._Outcome",
    *("api.shared_training.Features", "api.shared_training.SharedRun"),
    "statement.shared_training.SharedTrainingStatement",
    *("serving.signatures.StudentGraph", "teachers.settings.TeacherConfig"),
    *("analysis.guarantees.AnalysisConfig", "analysis.guarantees.Guarantee"),
    *("analysis.calibration.Calibration", "analysis.release_planning.ReleaseRequest"),
    *("analysis.release_planning.Released", "analysis.ledger.LedgerSummary"),
    *("queries.config.QueryConfig", "queries.queried.QueriedLabels"),
    "queries.strategies.Strategy",
    *(
        "api.analysis.RunConfig",
        "api.reporting.Reporting",
        "api.labelling.ReleasePlan",
    ),
    *("api.settings.LabelSettings", "api.labelling.JointPlan"),
    "api.calibration.RecommendationRun",
    *(
        "api.settings.Budget",
        "api.settings.ReleaseSettings",
        "api.student_training.Output",
        "api.student_publishing.Published",
    ),
    *("api.student_training.Measured", "api.sources.DataSource", "api.sources.TeacherSource"),
    *("api.teacher_run.Engine", "api.labels.Labels"),
    *("silos.messages.QueryBatch", "silos.messages.RandomisedVotes", "silos.messages.SealedShares"),
    *("silos.messages.Refusal", "silos.policy.Policy", "silos.roster.Member"),
    *("silos.roster.Roster", "silos.batch_queue.Round", "silos.asking.Asking"),
    *("statement.silos.SiloSpending", "statement.silos.SilosStatement"),
    *(
        "api.silo_coordinator.PublishedOfSilos",
        "api.silo.SiloRun",
        "api.silo_teacher.TeacherRun",
    ),
    *("api.silo_coordinator.CoordinatorRun", "api.silo_coordinator.CoordinatorReport"),
    *("silos.secure.keys.PartyIdentity", "silos.secure.terms.BatchTerms"),
    *("silos.secure.messages.PartyMessage", "silos.secure.messages.PartyTask"),
    *("silos.secure.protocol.Commitment", "silos.secure.protocol.Challenge"),
    *("silos.secure.opening.OpenedHistogram", "net.credentials.Limits"),
    *("net.credentials.TlsFiles", "api.party.PartyRun"),
    *("api.student_run.Sources", "api.student_run.StudentRun"),
    *("api.student_run.ComparisonRun", "api.teacher_settings.PartitionSource"),
    *("teachers.settings.TeacherSettings", "api.teacher_run.TeachersRun"),
    *(
        "api.analysis.VotesFile",
        "api.analysis.PaidVotes",
        "api.analysis.AskedRelease",
    ),
    *("api.teacher_run.Recommendation", "representations.catalogue._Kept"),
    *("api.analysis.AnalysisRun", "api.calibration.CalibrationRun"),
    "representations.regression.Regression",
    "representations.regression.Averages",
}
ACCOUNTING = "pate_tf.accounting."  # mechanisms and costs: public, by their nature


def dataclasses_of_the_library() -> dict[str, type]:
    found = {}
    for module in pkgutil.walk_packages(pate_tf.__path__, "pate_tf."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return {name: kind for name, kind in found.items() if name.startswith("pate_tf.")}


CLASSES = dataclasses_of_the_library()
SWEPT = {
    name: (*OF_PARTS.get(name, ()), *SENSITIVE.get(name, ())) for name in {**OF_PARTS, **SENSITIVE}
}


class Planted:
    """Stands for a value that must not be seen, wherever a text is made of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        return self.text

    def __len__(self) -> int:
        return 3

    shape = (3, 3)

    def sum(self) -> int:
        return 3


def planted(kind: type, secret: tuple[str, ...]) -> object:
    """An instance whose fields hold words that can be looked for in its texts."""
    instance = object.__new__(kind)
    for field in dataclasses.fields(kind):
        text = "SECRET" if field.name in secret or secret == ("*",) else "shown"
        object.__setattr__(instance, field.name, Planted(text))
    return instance


def test_every_dataclass_is_in_one_of_the_tables():
    ours = {name for name in CLASSES if not name.startswith(ACCOUNTING)}
    public = {f"pate_tf.{name}" for name in PUBLIC}
    assert ours - public - set(SWEPT) == set(), "say whether these hold sensitive values"
    assert (public | set(SWEPT)) - ours == set(), "these are gone"
    assert public & set(SWEPT) == set()


@pytest.mark.parametrize("name", SENSITIVE)
def test_sensitive_fields_are_not_shown(name):
    kind = CLASSES[name]
    fields = {field.name for field in dataclasses.fields(kind)}
    assert set(SENSITIVE[name]) <= fields | {"*"}
    instance = planted(kind, SENSITIVE[name])
    for text in (repr(instance), str(instance), f"{instance}", f"{[instance]}"):
        assert "SECRET" not in text


def test_the_sweep_would_see_a_field_that_is_shown():
    @dataclasses.dataclass
    class Shows:
        epsilon_data_dependent: float

    assert "SECRET" in repr(planted(Shows, ("epsilon_data_dependent",)))


@pytest.mark.parametrize("name", OF_PARTS)
def test_parts_hide_themselves(name):
    hints = {field.name: str(field.type) for field in dataclasses.fields(CLASSES[name])}
    hide_themselves = [swept.rpartition(".")[2] for swept in SWEPT]
    for field in OF_PARTS[name]:
        assert any(part in hints[field] for part in hide_themselves), hints[field]


@pytest.mark.parametrize("name", CLASSES)
def test_what_a_docstring_calls_sensitive_is_in_a_table(name):
    # "SENSITIVE; ..." is how an attribute is marked.
    for line in (CLASSES[name].__doc__ or "").splitlines():
        attribute, colon, rest = line.strip().partition(": ")
        if colon and rest.startswith("SENSITIVE"):
            assert attribute in SWEPT.get(name, ()), f"{name}.{attribute}"


NAMES = ("epsilon_data_dependent", "bounds", "smooth_sensitivity", "losses", "votes", "counts")


@pytest.mark.parametrize("name", CLASSES)
def test_names_of_sensitive_values_are_in_a_table(name):
    for field in dataclasses.fields(CLASSES[name]):
        if field.name in NAMES and name != "pate_tf.analysis.guarantees.AnalysisConfig":
            assert field.name in SWEPT.get(name, ()) or SWEPT.get(name) == ("*",), field.name


NUMBER = 918_273  # looked for in what is said and logged


@pytest.mark.parametrize(
    "fail",
    [
        lambda: VoteCounts(np.array([[NUMBER, -NUMBER]])),
        lambda: VoteCounts(np.array([NUMBER])),
        lambda: VoteCounts(np.array([[NUMBER + 0.5]])),
        lambda: Votes(np.array([[NUMBER]]), 10),
        lambda: VoteCounts(np.full((2, 2), NUMBER)).take([5]),
    ],
)
def test_errors_and_logs_carry_no_votes(fail, caplog):
    with caplog.at_level(logging.DEBUG), pytest.raises(ValueError) as caught:
        fail()
    error: BaseException | None = caught.value
    while error is not None:
        assert str(NUMBER) not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__
    assert str(NUMBER) not in caplog.text
