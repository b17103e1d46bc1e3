"""The sentences of the privacy statement."""

from pate_tf.queries.strategies import STRATEGIES

NEIGHBOURS = (
    "the {number} public inputs that look most like it; of them together each teacher named one "
    "class, so that a query costs what it costs alone"
)

VOTED = (
    "{:,} *teachers*, trained on disjoint parts of the private data set `{}`, voted for them, each "
    "for one class. "
)

PROTECTED = {
    "record": "one record of the private data, against replacement by any other record",
    "owner": "all records of one owner together, against adding or removing them",
}
_UNITS = {
    "record": {
        "one": "one record",
        "changed": "one record replaced by another",
        "candidates": (
            "Somebody knows all of the private data but one record, and of what is missing knows "
            "that it is one of two candidates, each as likely as the other."
        ),
        "each": "Each record",
    },
    "owner": {
        "one": "one owner's records",
        "changed": "all records of one owner added or removed",
        "candidates": (
            "Somebody knows all of the private data but for one owner, whose records they know as "
            "well, and not whether these are among the private data: either is as likely. (Against "
            "replacement: which of two owners' records are, each as likely as the other's.)"
        ),
        "each": "Each owner, with all records,",
    },
}

DATA_INDEPENDENT = (
    "Whatever anybody concludes, from the student, its labels and any other knowledge: the "
    "probability of that conclusion is at most exp(epsilon) times what it would be with "
    "{changed}, plus delta. It holds for every possible data set."
)
AGAINST_REPLACEMENT = "data-independent, against replacement"
OWNER_REPLACED = (
    "The same with one owner's records replaced by another owner's. That removes one and adds one, "
    "so two teachers may change, and it costs more."
)
SANITISED = (
    "The same for the data set as it was against every neighbour of it, and for no other pair of "
    "data sets; but for a probability of {failure:.3g} that the noise on this number made it too "
    "small. Whoever draws several such numbers and picks one has no such probability."
)
LATE_PLAN = (
    " Nothing shows that its plan was fixed before there were votes; if it was chosen by looking "
    "at them, this number promises less than it says."
)
NO_RELEASE = (
    "None is named here. `analysis.py` can release one for all labels of an ensemble, which is "
    "paid for as labels are; the page beside the ledger then names it, with what it costs itself."
)
NO_RELEASE_IF_ADAPTIVE = (
    "None, because it would not hold: queries were chosen by earlier noisy answers."
)
NOT_GATED = "Not used: these labels did not wait for a noisy bound on their cost."
DATA_DEPENDENT = (
    "Not published. It is a function of the private votes and would itself give something of them "
    "away; it is for those who hold the private data."
)
NOTHING = "Nothing: the noise came from a seed."
NOT_PRIVATE = (
    "**This student is NOT private.** Its noise came from a seed (`--insecure_seed`), so whoever "
    "knows the seed can take it away. The numbers below would hold for real noise; they promise "
    "nothing here."
)
TO_EVERYBODY = "everybody, in the data or not"
TO_THOSE_IN_THE_DATA = "those in the data"
TO_NOBODY = "nobody"

GUESSING = (
    "{candidates} Without the student half of the guesses are right. With all that an epsilon "
    "covers, and at this delta, no method does better than:"
)

_FIXED_QUERIES = (
    "Which queries were asked, and how many, was fixed without looking at private data or at "
    "earlier noisy answers."
)
_ADAPTIVE_QUERIES = (
    "Which queries were asked depended on public data and on earlier noisy answers alone, and how "
    "many was fixed beforehand. The data-independent epsilon covers such a choice, because it adds "
    "up worst cases."
)
_ASSUMPTIONS = (
    "{each} reached one teacher only, and which one did not depend on the others. What a teacher "
    "learnt depended on its own records, on public values and on a seed, and on nothing else.",
    "The pool that the queries came from is public.",
    "Models, settings, noise and numbers of queries were not chosen by looking at the private "
    "data, nor by how accurate the teachers were that learnt from them.",
    "Where several mechanisms were paid for, which ones and how often each was fixed without "
    "looking at earlier answers; or all that could be paid for was, and all of it is counted.",
)
_ASSUMPTIONS_OF_SUMS = (
    "What was added up of {one} depended on nothing but that, on public values and on its place "
    "among the private data.",
    "The pool whose inputs were labelled is public.",
    *_ASSUMPTIONS[2:],
)
_ENTROPY = "The noise came from the operating system's entropy source."
_NOT_COVERED = (
    "What the data set as a whole teaches: facts about a population that hold with or without "
    "{one} may be learnt.",
    "Anything else that was ever published about the same data, by this or another system.",
    "Teachers, partition, votes and logs below `sensitive/`, which must not be published.",
    "What this ensemble releases after this statement, labels or a sanitised epsilon: the ledger "
    "charges for it, and later statements include it.",
)
_NOT_COVERED_OF_UNIT = {
    "record": (
        "Whether a record is there at all, and how many there are: replacing a record is covered, "
        "adding or removing one is not.",
        "Several records of the same person: together they are protected by a larger epsilon only, "
        "which can be more than the sum of theirs; see the table. Where persons have several "
        "records each, name them as owners.",
    ),
    "owner": (
        "Somebody who counts as several owners: together these are protected by a larger epsilon "
        "only, which can be more than the sum of theirs; see the table.",
    ),
}

_ONE_LEDGER = (
    "What an ensemble released is what its one ledger says. That holds if the ledger was never "
    "deleted, restored from a copy or copied, and if nobody who may write to it rewrote it.",
    "This machine's record of ledgers notices a ledger that was deleted, restored or copied, and "
    "other ensembles of the same private records, for this user alone and from the day on that it "
    "was kept. Copies on other machines or under another user can't be seen, nor can records that "
    "were changed in any way before they were used again.",
)
_NOT_REGISTERED = (
    "NOT CHECKED: no record of ledgers could be kept on this machine, so that a ledger that was "
    "restored or copied, and other ensembles of the same records, would have gone unnoticed."
)
_NOT_COUNTED = (
    "NOT KNOWN: another ensemble of the same private records paid for something that is unknown "
    "here, so that nobody can say what all of them released together."
)
_RECORDS_UNKNOWN = (
    "NOT CHECKED: which private records the teachers learnt from is not known here, so that other "
    "ensembles of the same records could not be recognised; what these released is not counted."
)
_WAS_RESET = (
    "THE LEDGER WAS RESET: an earlier ledger of this ensemble, or rows of this one, were gone, and "
    "somebody went on regardless. What was known of their cost is counted here; whatever else they "
    "paid for is not, and no number above covers it."
)
SEVERAL = (
    "For several {units} of one person at once, the epsilon of this student's labels, at the same "
    "delta:"
)
LARGE_DELTA = (
    "**Warning: delta is too large for these data.** Delta times the number of private records is "
    "{product:.3g}; it should be far below 0.1. With a delta that large, a system that publishes "
    "some records as they are could keep to the guarantee."
)


def in_words(sentence: str, unit: str) -> str:
    """Returns a sentence for a "record" or an "owner"."""
    return sentence.format(**_UNITS[unit])


def assumptions(
    unit: str, query_strategy: str, *, secure_noise: bool, by_sums: bool = False
) -> list[str]:
    """Returns what the guarantees rest on, a sentence each."""
    adaptive = STRATEGIES[query_strategy].is_adaptive
    queries = _ADAPTIVE_QUERIES if adaptive else _FIXED_QUERIES
    sentences = _ASSUMPTIONS_OF_SUMS if by_sums else (queries, *_ASSUMPTIONS)
    found = [in_words(sentence, unit) for sentence in sentences]
    return [*found, _ENTROPY] if secure_noise else found


def not_covered(unit: str, delta: float, num_records: int | None) -> list[str]:
    """Returns what the guarantees leave out, a sentence each."""
    sentences = (*_NOT_COVERED, *_NOT_COVERED_OF_UNIT[unit])
    return [*(in_words(sentence, unit) for sentence in sentences), _delta(unit, delta, num_records)]


def _delta(unit: str, delta: float, num_records: int | None) -> str:
    if unit == "owner":
        return (
            "What happens with a probability of up to delta. How many owners there are is not "
            f"stated, as adding or removing one changes it: delta, {delta:g}, should be far "
            "smaller than one over that number, which those who hold the private data can check."
        )
    if num_records is None:
        return (
            "What happens with a probability of up to delta. How many private records there are is "
            f"not known here: delta, {delta:g}, should be far smaller than one over that number."
        )
    return (
        "What happens with a probability of up to delta. Delta times the number of private "
        f"records, {num_records:,}, is {delta * num_records:.3g}; it should be far below 0.1."
    )


def sanitised(*, failure: float, plan_was_fixed: bool) -> str:
    """Returns what a sanitised epsilon promises."""
    return SANITISED.format(failure=failure) + ("" if plan_was_fixed else LATE_PLAN)


def all_ensembles(num_ledgers: int | None) -> str:
    """Returns what the sum over ensembles covers."""
    counted = "" if num_ledgers is None else f" ({num_ledgers} ledgers)"
    return (
        "whatever all ensembles of the same private records released up to here, as far as known "
        f"on this machine{counted}"
    )


def one_ledger(
    *, was_reset: bool, is_registered: bool, records_are_known: bool, is_counted: bool = True
) -> list[str]:
    """Returns what an ensemble's numbers rest on, and what could not be checked."""
    found = [_WAS_RESET] if was_reset else []
    found += _ONE_LEDGER
    if not is_registered:
        return [*found, _NOT_REGISTERED]
    if not is_counted:
        return [*found, _NOT_COUNTED]
    return found if records_are_known else [*found, _RECORDS_UNKNOWN]
