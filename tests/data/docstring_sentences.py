"""Genuine English without a download: sentences from the docstrings of installed packages.

The class of a sentence is its package.
"""

import inspect
import re
import types

import keras
import numpy as np
import scipy.stats

PACKAGES = {"scipy": [scipy.stats], "keras": [keras.layers, keras.ops]}
FEWEST_WORDS = 6


def sentences_of(modules: list[types.ModuleType]) -> list[str]:
    actual = set()
    for module in modules:
        for name in sorted(vars(module)):
            text = inspect.getdoc(getattr(module, name)) or ""
            for sentence in re.split(r"(?<=[.:])\s+|\n\s*\n", text):
                words = re.findall(r"[A-Za-z]+", sentence)
                if len(words) >= FEWEST_WORDS and ">>>" not in sentence:
                    actual.add(" ".join(sentence.split())[:300])
    return sorted(actual)


def load(number: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Returns sentences in random order, equally many from each package, and their classes."""
    random = np.random.default_rng(seed)
    texts, labels = [], []
    for label, modules in enumerate(PACKAGES.values()):
        known = sentences_of(modules)
        chosen = random.choice(len(known), number // len(PACKAGES), replace=False)
        texts += [known[index] for index in chosen]
        labels += [label] * len(chosen)
    order = random.permutation(len(texts))
    return [texts[index] for index in order], [labels[index] for index in order]
