"""The sentences of the privacy statement."""

from collections.abc import Mapping

from pate_tf.accounting.mechanisms import mechanism_from_dict

_FIXED_STRATEGIES = {
    "first": "the first of the public pool",
    "random": "drawn at random from the public pool",
    "diverse": "spread over the public pool by what its inputs look like",
}
ADAPTIVE_STRATEGIES = {
    "uncertain": "in rounds, where a student of the earlier noisy labels was least sure",
    "binary_experts": "in rounds, where experts taught by the earlier noisy labels disagreed",
    "siamese": "in rounds, where no input with an earlier noisy label looked the same",
}
QUERY_STRATEGIES = {**_FIXED_STRATEGIES, **ADAPTIVE_STRATEGIES}

PROTECTED = {
    "record": "one record of the private data, against replacement by any other record",
    "owner": "all records of one owner together, against replacement by those of any other",
}
_UNITS = {
    "record": {
        "one": "one record",
        "another": "another",
        "each": "Each record",
        "several": "Several records of the same person: their costs add up.",
    },
    "owner": {
        "one": "one owner's records",
        "another": "another owner's",
        "each": "Each owner, with all records,",
        "several": "Somebody who counts as several owners: their costs add up.",
    },
}

DATA_INDEPENDENT = (
    "Whatever anybody concludes, from the student, its labels and any other knowledge: the "
    "probability of that conclusion is at most exp(epsilon) times what it would be with {one} "
    "replaced by {another}, plus delta. It holds for every possible data set."
)
SANITISED = (
    "The same for the data set as it was, and not for every other; but for a probability of "
    "{failure:.3g} that the noise on this number made it too small."
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
    "Somebody knows all of the private data but {one}, and of what is missing knows that it is one "
    "of two candidates, each as likely as the other. Without the student half of the guesses are "
    "right. With all that an epsilon covers, and at this delta, no method does better than:"
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
    "{each} reached one teacher only, and which one did not depend on the others.",
    "The pool that the queries came from is public.",
    "Models, settings, noise and numbers of queries were not chosen by looking at the private "
    "data, nor by how accurate the teachers were that learnt from them.",
)
_ENTROPY = "The noise came from the operating system's entropy source."
_NOT_COVERED = (
    "What the data set as a whole teaches: facts about a population that hold with or without "
    "{one} may be learnt.",
    "Anything else that was ever published about the same data, by this or another system.",
    "Teachers, partition, votes and logs below `sensitive/`, which must not be published.",
    "What this ensemble releases after this statement, labels or a sanitised epsilon: the ledger "
    "charges for it, and later statements include it.",
    "{several}",
)

_LARGEST_SUM = "The class with the largest sum is the label, and nothing else of the votes leaves."
_MECHANISMS = {
    "laplace_noisy_max": (
        "To every class's number of votes a random whole number is added, from the discrete "
        "Laplace law of scale {scale} votes. " + _LARGEST_SUM
    ),
    "permute_and_flip": (
        "Classes are visited in random order, and the first one accepted is the label: the leader "
        "always, another with a probability that falls by a factor of e for every {scale} votes "
        "that it is behind. Nothing else of the votes leaves."
    ),
    "exponential_mechanism": (
        "The label is drawn at random, and a class is e times as likely for every {scale} votes "
        "more that it has. Nothing else of the votes leaves."
    ),
    "gaussian_noisy_max": (
        "To every class's number of votes Gaussian noise of standard deviation {sigma} votes is "
        "added. " + _LARGEST_SUM
    ),
    "confident_gaussian_noisy_max": (
        "A query is answered only if the largest number of votes, with Gaussian noise of standard "
        "deviation {sigma_threshold} votes, reaches {threshold} votes; it is paid for either way. "
        "Then Gaussian noise of standard deviation {sigma} votes is added to every class's number "
        "of votes. " + _LARGEST_SUM
    ),
}


def in_words(sentence: str, unit: str) -> str:
    """Returns a sentence for a "record" or an "owner"."""
    return sentence.format(**_UNITS[unit])


def mechanism_in_words(mechanism: Mapping[str, object]) -> str:
    """Returns what a mechanism does with its parameters, from its `to_dict()`.

    Raises:
      ValueError: if it is none that draws noise, or a parameter is out of range.
    """
    name = mechanism_from_dict(mechanism).name
    if name not in _MECHANISMS:
        raise ValueError(f"mechanism: expected one of {sorted(_MECHANISMS)}, got {name!r}")
    numbers = {key: value for key, value in mechanism.items() if isinstance(value, float | int)}
    if "gamma" in numbers:
        numbers["scale"] = 1.0 / numbers["gamma"]
    shown = {key: f"{value:.4g}" for key, value in numbers.items()}
    return _MECHANISMS[name].format(**shown)


def assumptions(unit: str, query_strategy: str, *, secure_noise: bool) -> list[str]:
    """Returns what the guarantees rest on, a sentence each."""
    adaptive = query_strategy in ADAPTIVE_STRATEGIES
    queries = _ADAPTIVE_QUERIES if adaptive else _FIXED_QUERIES
    found = [in_words(sentence, unit) for sentence in (queries, *_ASSUMPTIONS)]
    return [*found, _ENTROPY] if secure_noise else found


def not_covered(unit: str) -> list[str]:
    """Returns what the guarantees leave out, a sentence each."""
    return [in_words(sentence, unit) for sentence in _NOT_COVERED]
