"""Coordinator, up to t aggregators and any silos lie together, at every step, in any way.

The adversary has the keys of t aggregators. It deals for its own silos and in the names of honest
ones. It relays any message to anybody, after it has heard all honest aggregators. It chooses moves
at random from the standard ones: replace, replay, reorder, equivocate, answer last, drop, repeat.
After each game the test checks two properties. Neither check knows which move was made:

- *Reads*: everything that the adversary holds is linear in the secrets (votes, the coefficients of
  honest sharings, honest noise), modulo the prime. The test compares all relations that it can form
  with the only permitted relation: L times the votes of a set of silos plus the noise of all honest
  aggregators. Every other relation is a leak.
  The games also use feature sums. There silos sign and aggregators add no noise. The adversary may
  learn sums of the tables of at least `least_silos - colluding` honest silos.

- *Biases*: with an honest coordinator, the opened result is the votes of honest silos, one vote per
  query of each other silo, and noise that was fixed at the first step.
"""

import dataclasses
import functools
import os
import pathlib
import random
import tempfile
import threading

import numpy as np
import pytest
from secure_helpers import some_keys, some_terms, transcript_of
from silo_helpers import Noted, secure_sums

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureHistogram
from pate_tf.net.wire_values import decode, digest, encode
from pate_tf.release.noise import SystemNoise
from pate_tf.silos import protocol, sealing, shamir
from pate_tf.silos.aggregator import Aggregator, ProtocolError
from pate_tf.silos.coordinator import open_histogram
from pate_tf.silos.protocol import STEPS, AggregatorMessage, AggregatorTask, BatchTerms, Keys, Step
from pate_tf.silos.shamir import PRIME

WORDS = SystemNoise().words
NUM_CLASSES = 2


@dataclasses.dataclass
class Dealt:
    """A silo's secret shares as sealed by an honest silo or by the adversary."""

    silo: str
    labels: np.ndarray | None  # of an honest silo
    shares: np.ndarray
    sealed: tuple


class Game:
    """Aggregators 1 .. h are honest; the adversary has the keys of the rest."""

    def __init__(self, folder, dice, *, num_parties, threshold, are_sums=False):
        self.dice = dice
        self.keys = some_keys(num_parties)
        self.terms = some_terms(
            self.keys, sigma=1000.0, threshold=threshold, num_queries=1, num_classes=NUM_CLASSES
        )
        honest_silos = ("silo-1", "silo-2", "silo-3") if are_sums else ("silo-1", "silo-2")
        self.silo_keys = {}
        if are_sums:
            self.silo_keys = {name: Keys(name) for name in (*honest_silos, "bad-1")}
            parties = {"num_parties": num_parties, "threshold": threshold}
            release = secure_sums(sigma=1000.0, num_features=NUM_CLASSES - 1, **parties)
            listed = tuple(one.identity for one in self.silo_keys.values())
            self.terms = dataclasses.replace(self.terms, mechanism=release, silos=listed)
        self.other_terms = dataclasses.replace(self.terms, question=bytes(32))
        self.honest = range(1, num_parties - threshold + 1)
        self.bad = range(num_parties - threshold + 1, num_parties + 1)
        self.noise = {number: Noted() for number in self.honest}
        self.aggregators = {
            number: Aggregator(
                self.keys[number - 1], folder / str(number), noise=self.noise[number]
            )
            for number in self.honest
        }
        self.dealt = {}
        for name in honest_silos:
            label = np.array([dice.randrange(NUM_CLASSES)])
            self.dealt[name] = self.deal(name, label, self.terms)
        self.before = {
            name: self.deal(name, one.labels, self.other_terms).sealed
            for name, one in self.dealt.items()
        }
        # by aggregator and silo: the shares it accepted
        self.used = {number: {} for number in self.honest}
        self.heard = {step: {} for step in STEPS}  # by step: the message of each honest aggregator
        self.told = {step: {} for step in STEPS}  # by step: the messages in its task

    def deal(self, silo, labels, terms):
        one_hot = np.zeros(terms.shape, np.uint64)
        one_hot[np.arange(len(labels)), labels] = 1
        shares = sealing.deal(one_hot, terms, SystemNoise())
        keys = self.silo_keys.get(silo)
        return Dealt(silo, labels, shares, sealing.seal_shares(shares, terms, silo=silo, keys=keys))

    def close(self):
        for aggregator in self.aggregators.values():
            aggregator.close()

    @property
    def is_released(self):
        return len(self.heard[Step.RELEASE]) == len(self.honest)

    def noise_of(self, commitment, dealer, number):
        """Returns an aggregator's secret share of the noise that another aggregator
        committed to.
        """
        sealed, keys = commitment.noise[number - 1], self.keys[number - 1]
        sender = self.terms.aggregators[dealer - 1].name
        row = sealing.unseal(sealed, self.terms, sender=sender, kind="noise", keys=keys)
        return shamir.from_bytes(row, (self.terms.size,), "noise")

    def numbers_of(self, number, sealed, silo):
        """Returns the numbers sealed to an aggregator, or None if they do not open."""
        try:
            return sealing.open_share(sealed, self.terms, silo=silo, keys=self.keys[number - 1])[0]
        except ValueError:
            return None


class Adversary:
    """Moves of the dishonest side. It hears all honest aggregators before its own aggregators
    speak.
    """

    def __init__(self, game, *, coordinator_lies=True):
        self.game, self.dice, self.terms = game, game.dice, game.terms
        self.coordinator_lies = coordinator_lies
        self.seeds = {number: os.urandom(32) for number in game.bad}
        self.forged = {}
        self.lock = threading.Lock()
        # How careful it is to avoid refusals: a game that is spoiled at once tests little.
        self.care = self.dice.choice([0.0, 0.6, 0.95])

    def chance(self, likely):
        return self.dice.random() < likely

    def dares(self, likely):
        """Returns whether it takes a risk that may spoil the batch."""
        return self.dice.random() < likely * (1.0 - self.care)

    # ---- silos ----

    def random_shares(self):
        """Returns secret shares of invalid votes, of no polynomial, or of a polynomial of degree 2
        t.
        """
        size, count = self.terms.share_size, len(self.terms.aggregators)
        kind = self.dice.choice(["votes", "votes", "heavy", "uniform", "degree", "square"])
        one_hot = np.array([[1, 0]], np.uint64)
        if kind == "heavy":
            one_hot = np.array([[1000, shamir.PRIME - 999]], np.uint64)
        shares = sealing.deal(one_hot, self.terms, SystemNoise())
        if kind == "uniform":
            shares = shamir.uniform((count, size), WORDS)
        elif kind == "degree":
            high = shamir.share(
                np.zeros(size, np.uint64),
                num_parties=count,
                degree=2 * self.terms.threshold,
                words=WORDS,
            )
            shares = shamir.add(shares, high)
        elif kind == "square":
            shares[:, 1] = shamir.add(shares[:, 1], np.uint64(1))
        return shares

    def share_of(self, silo):
        """Returns a genuine secret share, with the digests of all shares of the silo and its
        signature.
        """
        number = self.game.bad[0]
        whole = sealing.unseal(
            self.game.dealt[silo].sealed[number - 1],
            self.terms,
            sender=silo,
            kind="votes",
            keys=self.game.keys[number - 1],
        )
        return decode(sealing.SilosShare, whole)

    def forge(self, silo):
        """Returns new secret shares in a silo's name: with new digests, or next to the genuine
        shares.
        """
        shares = self.random_shares()
        if silo not in self.game.dealt or self.chance(0.5):
            keys = self.game.silo_keys.get("bad-1")
            return sealing.seal_shares(shares, self.terms, silo=silo, keys=keys)
        genuine = self.share_of(silo)
        return tuple(
            sealing.seal(
                encode(
                    dataclasses.replace(
                        genuine, blind=os.urandom(sealing.BLIND_BYTES), row=shamir.to_bytes(row)
                    )
                ),
                self.terms,
                sender=silo,
                kind="votes",
                aggregator=number,
            )
            for number, row in enumerate(shares, start=1)
        )

    def sealed_to(self, number):
        """Returns the messages that the coordinator gives to one aggregator as silos' secret
        shares.
        """
        sealed = {}
        for silo, one in self.game.dealt.items():
            move = self.dice.choices(
                ["genuine", "forged", "replayed", "aggregator", "silo", "altered", "dropped"],
                [60 if self.terms.are_sums else 20, 3, 1, 1, 1, 1, 1],
            )[0]
            genuine = one.sealed[number - 1]
            if not self.coordinator_lies or move == "genuine":
                sealed[silo] = genuine
            elif move == "forged":
                if silo not in self.forged or self.chance(0.3):
                    self.forged[silo] = self.forge(silo)
                sealed[silo] = self.forged[silo][number - 1]
            elif move == "replayed":
                sealed[silo] = self.game.before[silo][number - 1]
            elif move == "aggregator":
                sealed[silo] = self.dice.choice(one.sealed)
            elif move == "silo":
                sealed[silo] = self.game.dealt["silo-1"].sealed[number - 1]
            elif move == "altered":
                sealed[silo] = genuine[:-1] + bytes([genuine[-1] ^ 1])
        for silo in ("bad-1", "bad-2"):
            if silo not in self.forged:
                self.forged[silo] = self.forge(silo)
            sealed[silo] = self.forged[silo][number - 1]
        return sealed

    # ---- the adversary's aggregators ----

    def say(self, number, step, seen, content):
        message = AggregatorMessage(
            terms_digest=self.terms.digest, step=step, aggregator=number, seen=seen, content=content
        )
        return message.signed(self.game.keys[number - 1])

    def commit(self, number, honest):
        """Returns a commitment of one of its aggregators to any silos, dealings and noise."""
        told = [protocol.Commitment.of(one.content, self.terms) for one in honest]
        dealings = dict(self.dice.choice(told).dealings)
        if self.dares(0.05) and dealings:
            dealings.pop(self.dice.choice(sorted(dealings)))
        size = self.terms.size
        noise = []
        kind = self.dice.choice(
            ["none", "dealt", "uneven", "copied"] if self.dares(0.2) else ["dealt"]
        )
        dealt = shamir.share(
            shamir.from_integers(np.full(size, self.dice.choice([0, 17, 10**12]))),
            num_parties=len(self.terms.aggregators),
            degree=self.terms.threshold,
            words=WORDS,
        )
        for other in self.terms.numbers:
            row = dealt[other - 1]
            if kind == "none":
                row = np.zeros_like(row)
            elif kind == "uneven":
                row = shamir.uniform((size,), WORDS)
            name = self.terms.aggregators[number - 1].name
            sealed = sealing.seal(
                shamir.to_bytes(row), self.terms, sender=name, kind="noise", aggregator=other
            )
            if kind == "copied" and told[0].noise:
                sealed = told[0].noise[other - 1]
            noise.append(sealed)
        commitment = protocol.Commitment(
            dealings=dealings,
            part_digest=protocol.seed_digest(self.seeds[number], number, self.terms),
            noise=() if self.terms.are_sums else tuple(noise),
        )
        return encode(commitment)

    def fitting(self, step, honest, target):
        """Returns values for which t + 1 honest aggregators' shares open; for the check, to a
        target.
        """
        silos = self.common
        size = self.terms.shape[0] if step is Step.MASK else 1
        try:
            shares = {
                one.aggregator: shamir.from_bytes(one.content, (len(silos), size), "x")
                for one in honest
            }
        except ValueError:
            return {}
        threshold = self.terms.threshold
        used = sorted(shares)[: threshold + 1]
        if target is not None:  # a polynomial through 0 and t honest points
            shares = {**shares, 0: np.full_like(shares[1], target)}
            used = [0, *used[:threshold]]
        return {number: shamir.interpolate(shares, used, number) for number in self.game.bad}

    def open(self, number, step, honest):
        """Returns the shares of one of its aggregators in the steps that open something."""
        kind = "fit"
        if self.dares(0.5):
            kind = self.dice.choice(["zero", "zero", "random"])
        silos = self.common
        size = self.terms.shape[0] if step is Step.MASK else 1
        if kind == "fit":
            values = self.fitting(step, honest, None).get(number)
        elif kind == "zero":
            values = self.fitting(step, honest, 0).get(number)
        else:
            values = shamir.uniform((len(silos), size), WORDS)
        if values is None:
            values = np.zeros((len(silos), size), np.uint64)
        return shamir.to_bytes(values)

    def messages_after(self, step):
        """Returns the messages of all aggregators on a step, as shown to one honest aggregator."""
        honest = [self.game.heard[step][number] for number in self.game.honest]
        return (*honest, *(self.lie(number, step, honest) for number in self.game.bad))

    def lie(self, number, step, honest):
        """Returns a message of one of its aggregators, after it heard all honest aggregators."""
        seen = b"" if step is Step.COMMIT else self.seen
        if step is Step.COMMIT:
            content = self.commit(number, honest)
        elif step is Step.REVEAL:
            seen = os.urandom(32) if self.dares(0.05) else self.seen
            content = os.urandom(32) if self.dares(0.05) else self.seeds[number]
        elif step in (Step.MASK, Step.CHECK):
            content = self.open(number, step, honest)
        else:
            copied = self.dice.choice(honest)
            seen, content = copied.seen, copied.content
        if self.dares(0.02):
            copied = self.dice.choice(honest)
            seen, content = copied.seen, copied.content
        return self.say(number, step, seen, content)

    def learn(self, step, story):
        """Notes the values that the next step's messages must name."""
        self.seen = digest(tuple(story))
        if step is Step.COMMIT:
            honest = story[: len(self.game.honest)]
            told = [protocol.Commitment.of(one.content, self.terms) for one in honest]
            self.common = protocol.common_silos(told)


def play(game, adversary):
    """Runs a batch as the adversary likes. It hears every message of the honest aggregators."""
    stories = dict.fromkeys(game.honest, ())
    for step in STEPS:
        for number in game.honest:
            for _ in range(6):  # a refused task may be tried in another form
                sealed = adversary.sealed_to(number) if step is Step.COMMIT else {}
                task = AggregatorTask(
                    step=step, terms=game.terms, sealed=sealed, messages=stories[number]
                )
                try:
                    game.heard[step][number] = game.aggregators[number].answer(task)
                except (ValueError, ProtocolError):
                    if step is not Step.COMMIT:
                        stories[number] = adversary.messages_after(STEPS[STEPS.index(step) - 1])
                    continue
                game.told[step][number] = task.messages
                if step is Step.COMMIT:
                    game.used[number] = {
                        silo: game.numbers_of(number, one, silo) for silo, one in sealed.items()
                    }
                break
        if len(game.heard[step]) < len(game.honest):
            return
        if adversary.chance(0.1):  # killed, and restarted on its folder
            number = adversary.dice.choice(list(game.honest))
            folder = game.aggregators[number].journal.folder
            game.aggregators[number].close()
            game.aggregators[number] = Aggregator(
                game.keys[number - 1], folder, noise=game.noise[number]
            )
        story = adversary.messages_after(step)
        adversary.learn(step, story)
        equivocates = adversary.dares(0.15)
        stories = {
            number: adversary.messages_after(step) if equivocates else story
            for number in game.honest
        }


# ---- the adversary's knowledge -------------------------------------------------------------------


class Knowledge:
    """Linear relations modulo the prime between a batch's secrets, as rows of {unknown: factor}."""

    def __init__(self, game):
        self.game, self.rows = game, []
        self.size = game.terms.share_size
        self.counts = game.terms.shape[0] * NUM_CLASSES
        for silo, one in game.dealt.items():
            for number in game.bad:
                if game.numbers_of(number, one.sealed[number - 1], silo) is not None:
                    for place in range(self.size):
                        self.rows.append(self.value("share", silo, place, number))
        self.noisy = () if game.terms.are_sums else tuple(game.honest)  # aggregators that add noise
        for aggregator in self.noisy:
            for number in game.bad:
                for place in range(self.counts):
                    self.rows.append(self.value("noise", aggregator, place, number))

    def value(self, kind, of, place, number):
        """Returns an aggregator's share of one secret, in the unknown coefficients of its
        polynomial.
        """
        degrees = range(self.game.terms.threshold + 1)
        return {(kind, of, place, power): pow(number, power, PRIME) for power in degrees}

    def hear(self, combination):
        """Adds a relation: a sum of rows with factors."""
        row = {}
        for factor, unknown in combination:
            for name, weight in unknown.items():
                row[name] = (row.get(name, 0) + factor * weight) % PRIME
        self.rows.append(row)

    def listen(self):
        """Adds all values that honest aggregators opened."""
        game = self.game
        num_queries = game.terms.shape[0]
        for number in game.honest:
            if number not in game.heard[Step.MASK]:
                continue
            said = transcript_of(game.aggregators[number], game.terms, Step.MASK)
            silos, challenge = said.silos, said.challenge
            own = {
                silo: functools.partial(self.value, "share", silo, number=number)
                for silo in silos
                if self.is_genuine(number, silo)
            }
            for share in own.values():
                for query in range(num_queries):
                    rho = challenge.rho[query]
                    ballots = [
                        (int(rho[k]), share(self.place(query, k))) for k in range(NUM_CLASSES)
                    ]
                    self.hear([(1, share(query)), *ballots])
            if number in game.heard[Step.CHECK]:
                self.listen_to_checks(number, silos, challenge, own)
            if number in game.heard[Step.RELEASE]:
                summed = transcript_of(game.aggregators[number], game.terms, Step.RELEASE).passing
                for count in range(self.counts):
                    terms = [
                        (1, self.value("noise", aggregator, count, number))
                        for aggregator in self.noisy
                    ]
                    terms += [
                        (LATTICE if self.noisy else 1, own[silo](2 * num_queries + count))
                        for silo in summed
                        if silo in own
                    ]
                    self.hear(terms)

    def listen_to_checks(self, number, silos, challenge, own):
        game = self.game
        content = game.heard[Step.CHECK][number].content
        said = shamir.from_bytes(content, (len(silos), 1), "check")
        story = self.masked_story(number, silos)
        for place, silo in enumerate(silos):
            if silo not in own or story[place] is None:
                continue
            genuine = game.dealt[silo].shares[number - 1]
            assert int(challenge.check_value(genuine, story[place])) == int(said[place, 0])
            if game.terms.are_sums:
                assert not said[place, 0]  # nothing is opened
                continue
            terms = []
            for query in range(game.terms.shape[0]):
                tau, chi, y = (
                    int(one[query]) for one in (challenge.tau, challenge.chi, story[place])
                )
                terms.append((-2 * y * tau, own[silo](query)))
                terms.append((tau, own[silo](game.terms.shape[0] + query)))
                for k in range(NUM_CLASSES):
                    rho = int(challenge.rho[query, k])
                    terms.append((chi - tau * rho * rho, own[silo](self.place(query, k))))
            self.hear(terms)

    def masked_story(self, number, silos):
        """Returns the masked sums that an honest aggregator saw, from the honest shares only."""
        game = self.game
        shape = (len(silos), game.terms.shape[0])
        values = {
            other: shamir.from_bytes(game.heard[Step.MASK][other].content, shape, "mask")
            for other in game.honest
        }
        seen = transcript_of(game.aggregators[number], game.terms, Step.CHECK).masked
        opened = protocol.opened(values, threshold=game.terms.threshold)
        return [None if y is None else own for own, y in zip(opened, seen, strict=True)]

    def place(self, query, k):
        return 2 * self.game.terms.shape[0] + query * NUM_CLASSES + k

    def is_genuine(self, number, silo):
        used = self.game.used[number].get(silo)
        one = self.game.dealt.get(silo)
        return one is not None and used is not None and np.array_equal(used, one.shares[number - 1])

    def mixed(self):
        """Returns honest silos whose genuine shares some honest aggregators add, while others add
        forged shares.
        """
        genuine = {}
        for number in self.game.heard[Step.REVEAL]:
            said = transcript_of(self.game.aggregators[number], self.game.terms, Step.REVEAL)
            for silo in set(said.silos) & set(self.game.dealt):
                genuine.setdefault(silo, set()).add(self.is_genuine(number, silo))
        return [silo for silo, kinds in genuine.items() if len(kinds) > 1]

    def leaks(self):
        """Returns relations without coefficients of sharings and masks that the adversary must not
        know.
        """
        num_queries = self.game.terms.shape[0]

        def is_secret(name):
            kind, _, place, power = name
            return power == 0 and (kind == "noise" or place >= 2 * num_queries)

        actual = []
        for row in reduced(self.rows, last=is_secret):
            if self.game.terms.are_sums:
                actual += [] if self.are_enough(row) else [row]
                continue
            noise = {name: factor for name, factor in row.items() if name[0] == "noise"}
            shares = {name: factor for name, factor in row.items() if name[0] == "share"}
            by_place = {}
            for (_, aggregator, place, _), factor in noise.items():
                by_place.setdefault(place, {})[aggregator] = factor
            entitled = bool(by_place)
            for factors in by_place.values():
                entitled &= (
                    set(factors) == set(self.game.honest) and len(set(factors.values())) == 1
                )
            for (_, _, place, _), factor in shares.items():
                common = by_place.get(place - 2 * num_queries)
                entitled &= (
                    common is not None and factor == LATTICE * next(iter(common.values())) % PRIME
                )
            if not entitled:
                actual.append(row)
        return actual

    def are_enough(self, row):
        """Returns whether a relation sums enough honest silos' tables, each of them once."""
        by_place = {}
        for (_, silo, place, _), factor in row.items():
            by_place.setdefault(place, {})[silo] = factor
        least = self.game.terms.mechanism.num_honest
        return bool(by_place) and all(
            len(factors) >= least and len(set(factors.values())) == 1
            for factors in by_place.values()
        )


def reduced(rows, last):
    """Returns rows in echelon form with unknowns of the kind `last` only, by eliminating the rest
    first.
    """
    rows = [dict(row) for row in rows]
    names = sorted({name for row in rows for name in row}, key=str)
    done = []
    for name in [n for n in names if not last(n)] + [n for n in names if last(n)]:
        pivot = next((row for row in rows if row.get(name, 0)), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        inverse = pow(pivot[name], -1, PRIME)
        pivot = {other: value * inverse % PRIME for other, value in pivot.items() if value}
        for row in [*rows, *(one for one in done if last(name))]:
            factor = row.get(name, 0)
            if factor:
                for other, value in pivot.items():
                    row[other] = (row.get(other, 0) - factor * value) % PRIME
        if last(name):
            done.append(pivot)
    return [{n: v for n, v in row.items() if v} for row in done]


def check_sums(game):
    """Checks that the honest aggregators released the sum that the referee computes, with all
    noise.
    """
    terms = game.terms
    factor = np.uint64(1 if terms.are_sums else LATTICE)
    for number in game.honest:
        story = game.told[Step.REVEAL][number]
        total = np.zeros(terms.size, np.uint64)
        for message in () if terms.are_sums else story:
            dealer = message.aggregator
            commitment = protocol.Commitment.of(message.content, terms)
            rows = {
                other: game.noise_of(commitment, dealer, other)
                for other in terms.numbers
                if other != dealer and commitment.noise[other - 1]
            }
            if dealer in game.honest:
                opened = shamir.to_integers(shamir.reconstruct(rows, degree=terms.threshold))
                assert opened.tolist() == game.noise[dealer].drawn.tolist()
                others = sorted(rows)[: terms.threshold + 1]
                rows[dealer] = shamir.interpolate(rows, others, dealer)
            total = shamir.add(total, rows[number])
        said = transcript_of(game.aggregators[number], terms, Step.RELEASE)
        for silo in said.passing:
            ballots = game.used[number][silo][2 * terms.shape[0] :]
            total = shamir.add(total, shamir.multiply(ballots, factor))
        message = game.heard[Step.RELEASE][number]
        assert message.seen == digest(game.told[Step.RELEASE][number])
        assert message.content == shamir.to_bytes(total)


def games(number, seed, **sizes):
    """Plays this many games. Yields each game with its referee's knowledge."""
    dice = random.Random(seed)
    for _ in range(number):
        with tempfile.TemporaryDirectory() as folder:
            game = Game(pathlib.Path(folder), dice, **sizes)
            try:
                play(game, Adversary(game))
                knowledge = Knowledge(game)
                knowledge.listen()
                yield game, knowledge
            finally:
                game.close()


SIZES = [(4, 1), (6, 2)]


def nothing_is_read(number, seed, num_parties, threshold, are_sums=False):
    released, sizes = 0, {"num_parties": num_parties, "threshold": threshold}
    for game, knowledge in games(number, seed, **sizes, are_sums=are_sums):
        assert knowledge.leaks() == []
        assert knowledge.mixed() == []
        if game.is_released:
            check_sums(game)
            released += 1
    # The adversary is not refused at once: games reach their end.
    assert released >= number // 10


@pytest.mark.parametrize(("num_parties", "threshold"), SIZES)
def test_liars_read_the_noisy_histogram_and_nothing_else(num_parties, threshold):
    nothing_is_read(30, 1, num_parties, threshold)


@pytest.mark.parametrize(("num_parties", "threshold"), SIZES)
def test_liars_read_the_total_of_enough_silos_and_nothing_else(num_parties, threshold):
    nothing_is_read(30, 6, num_parties, threshold, are_sums=True)


# ---- the harness finds broken protocols ----------------------------------------------------------


def unbound(committed):
    """Returns silos of which every aggregator has some share, from any dealing."""
    common = set(committed[0].dealings).intersection(*(each.dealings for each in committed[1:]))
    return tuple(sorted(common))


@pytest.mark.parametrize(("num_parties", "threshold"), [(3, 1), (4, 1), (6, 2)])
def test_shares_that_are_not_bound_are_found(monkeypatch, num_parties, threshold):
    monkeypatch.setattr(SecureHistogram, "__post_init__", lambda self: None)
    monkeypatch.setattr(protocol, "common_silos", unbound)
    played = games(50, 7, num_parties=num_parties, threshold=threshold)
    assert any(knowledge.mixed() for _, knowledge in played)


@pytest.mark.parametrize(("num_parties", "threshold"), [(3, 1), (5, 2)])
def test_votes_that_can_be_read_are_found(monkeypatch, num_parties, threshold):
    """Without binding and checks, a forged share reveals another aggregator's share of
    its noise.
    """
    monkeypatch.setattr(SecureHistogram, "__post_init__", lambda self: None)
    monkeypatch.setattr(protocol, "common_silos", unbound)
    monkeypatch.setattr(protocol, "passing_silos", lambda silos, masked, checked: tuple(silos))
    played = games(100, 7, num_parties=num_parties, threshold=threshold)
    assert any(knowledge.leaks() for _, knowledge in played)


def test_totals_of_too_few_silos_are_found(monkeypatch):
    derive = BatchTerms.__post_init__

    def one_suffices(terms):
        derive(terms)
        object.__setattr__(terms, "least_silos", 1)

    monkeypatch.setattr(BatchTerms, "__post_init__", one_suffices)
    played = games(100, 8, num_parties=4, threshold=1, are_sums=True)
    assert any(knowledge.leaks() for _, knowledge in played)


# ---- results with an honest coordinator ----------------------------------------------------------


class LyingParty:
    """One of the adversary's aggregators as the coordinator sees it. It hears honest aggregators
    first.
    """

    def __init__(self, number, adversary, sealed):
        self.number, self.adversary, self.sealed = number, adversary, sealed

    def __call__(self, task):
        game, adversary = self.adversary.game, self.adversary
        honest = []
        for other in game.honest:
            shares = {silo: each[other - 1] for silo, each in self.sealed.items()}
            own = dataclasses.replace(task, sealed=shares if task.step is Step.COMMIT else {})
            honest.append(game.aggregators[other].answer(own))
        with adversary.lock:
            if task.step is Step.REVEAL:
                game.told[Step.REVEAL][1] = task.messages
            if task.step is not Step.COMMIT:
                adversary.learn(STEPS[STEPS.index(task.step) - 1], task.messages)
            if task.step is not Step.RELEASE:
                return adversary.lie(self.number, task.step, honest)
            if adversary.dares(0.2):
                raise ConnectionError
            threshold = game.terms.threshold
            values = {
                one.aggregator: shamir.from_bytes(one.content, game.terms.shape, "x")
                for one in honest
            }
            own = shamir.interpolate(values, sorted(values)[: threshold + 1], self.number)
            if adversary.dares(0.3):
                own = shamir.add(own, np.uint64(LATTICE))
            content = shamir.to_bytes(own)
            return adversary.say(self.number, Step.RELEASE, digest(task.messages), content)


def nothing_is_biased(number, seed, num_parties, threshold):
    dice, opened_games, biased_silos = random.Random(seed), 0, 0
    for _ in range(number):
        with tempfile.TemporaryDirectory() as folder:
            game = Game(pathlib.Path(folder), dice, num_parties=num_parties, threshold=threshold)
            adversary = Adversary(game, coordinator_lies=False)
            try:
                opened = opened_against(game, adversary)
                if opened is not None:
                    opened_games += 1
                    biased_silos += len(set(opened.silos) - set(game.dealt))
            finally:
                game.close()
    assert opened_games >= number // 10 and biased_silos >= 1


def opened_against(game, adversary):
    """Opens a batch against lying silos and aggregators and checks the result; None without a
    result.
    """
    terms = game.terms
    sealed = {silo: one.sealed for silo, one in game.dealt.items()}
    bad = {}
    for silo in ("bad-1", "bad-2"):
        bad[silo] = adversary.random_shares()
        sealed[silo] = sealing.seal_shares(bad[silo], terms, silo=silo)
    asks = {number: aggregator.answer for number, aggregator in game.aggregators.items()}
    asks |= {number: LyingParty(number, adversary, sealed) for number in game.bad}
    try:
        opened = open_histogram(terms, sealed, [asks[number] for number in sorted(asks)])
    except (ValueError, ConnectionError):
        return None
    expected = sum(game.noise[number].drawn for number in game.honest).reshape(terms.shape)
    expected = expected + dealt_noise(game).reshape(terms.shape)
    for silo in opened.silos:
        if silo in game.dealt:
            expected[np.arange(terms.shape[0]), game.dealt[silo].labels] += LATTICE
    rest = opened.noisy_counts - expected
    assert not (rest % LATTICE).any()
    ballots = rest // LATTICE
    lying = len(set(opened.silos) & set(bad))
    assert (ballots >= 0).all() and (ballots.sum(axis=1) == lying).all()
    return opened


def dealt_noise(game):
    """Returns the adversary's noise, fixed at the first step, from honest aggregators' shares."""
    total = np.zeros(game.terms.size, np.int64)
    story = [protocol.Commitment.of(each.content, game.terms) for each in game.told[Step.REVEAL][1]]
    for dealer in game.bad:
        rows = {other: game.noise_of(story[dealer - 1], dealer, other) for other in game.honest}
        total += shamir.to_integers(shamir.reconstruct(rows, degree=game.terms.threshold))
    return total


@pytest.mark.parametrize(("num_parties", "threshold"), SIZES)
def test_liars_give_each_of_their_silos_one_vote_at_most(num_parties, threshold):
    nothing_is_biased(20, 3, num_parties, threshold)


def test_votes_beyond_one_are_found(monkeypatch):
    monkeypatch.setattr(protocol, "passing_silos", lambda silos, masked, checked: tuple(silos))
    with pytest.raises((AssertionError, ValueError)):
        nothing_is_biased(40, 5, 4, 1)
