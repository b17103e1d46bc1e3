"""A ledger and a silo's account behind one interface, for tests."""

import hashlib
import secrets

from pate_tf.accounting.local import RandomisedResponse
from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.ledger import Ledger
from pate_tf.silos.roster import Policy
from pate_tf.silos.silo import SiloAccount

LABEL_BITS = 62  # a second draw would give another answer


def query(number):
    return hashlib.sha256(str(number).encode()).digest()


class LedgerStore:
    """A ledger of one ensemble."""

    charge = LaplaceNoisyMax(gamma=0.05)

    def open(self, folder, **settings):
        return Ledger.open(folder, ensemble_digest="ab" * 32, delta=1e-5, **settings)

    def answers(self, store, numbers):
        queries = {query(number): number for number in numbers}
        return {
            queries[one]: actual.label for one, actual in store.stored_answers([*queries]).items()
        }

    def answer(self, store, number):
        debit = store.debit(self.charge, [query(number)], secure_noise=True)
        store.store_answers(debit, [query(number)], [secrets.randbits(LABEL_BITS)])


class AccountStore:
    """The account of one silo."""

    charge = RandomisedResponse(num_classes=1_000, epsilon=1.0)

    def open(self, folder, **settings):
        policy = Policy(silo="clinic", epsilon_budget=1e6, delta=1e-5)
        return SiloAccount(folder, policy, **settings)

    answers = LedgerStore.answers

    def answer(self, store, number):
        store.debit(self.charge, [query(number)])
        store.store_labels({query(number): secrets.randbits(LABEL_BITS)})


STORES = {"ledger": LedgerStore(), "account": AccountStore()}


def spend(kind, store, numbers):
    """Answers queries as labeller and silo do: each once. Returns the answers."""
    own = STORES[kind]
    with store.exclusive():
        for number in numbers:
            if not own.answers(store, [number]):
                own.answer(store, number)
        return own.answers(store, numbers)


def spend_on(kind, folder, count):
    """Opens a store and answers this many queries, one after another."""
    store = STORES[kind].open(folder)
    for number in range(count):
        spend(kind, store, [number])
