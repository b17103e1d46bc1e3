"""Two stand-ins for small photographs: `--dataset=benchmarks.colour:digits`, or `:letters`.

`digits` puts two or three digits of MNIST on a coloured, textured ground; the one in the middle is
the class. `letters` has ten letters in twenty fonts with what photographs have: a ground whose
amplitudes fall as one over the frequency, a colour cast, blur and noise. Images are 32 x 32, the
same on every machine with the same fonts: 45,000 private, 10,000 of the public pool, 1,000 held
out of both.

`python -m benchmarks.colour --representations patches wavelets --data_dir=DIR` prints how many of
the pool's labels a linear model has right, by noisy class sums of each representation. Names are
joined by `+`. Noise is what `NOISE` says of 45,000 records, and as much smaller as `--private` is;
the ridge is the best of six on the pool's labels. Nothing is private here: it compares features.

With `--students` it prints what `--method=feature_sums` gives instead: how many of the labels that
students learn from are right, and how often each student is, on some of the private records, by
which to choose, and on the samples held out.
"""

import argparse
import functools
import pathlib
import tempfile
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.ndimage

import pate_tf
from benchmarks import letters as drawn
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data import catalogue
from pate_tf.models.encoder import Encoder, record_vectors
from pate_tf.representations.catalogue import encoder_of

SIDE = 32
SIZES = {"private": 45_000, "public": 11_000}
POOL_SIZE = 10_000  # of the public ones; the others are held out
LEAST_CONTRAST = 40.0  # between the middle one's mean brightness and its ground's
NOISE = {1.0: 7.46, 0.1: 61.5}  # by epsilon: deviation of each sum
DELTA = 1e-6
ASKED = ((1.0, 16), (1.0, 1), (0.1, 1))  # epsilons and rounds that students are compared at
TRIED = 5_000  # private records that students are tried on
ON = ("private records", "held out")  # what students are right on
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Load = Callable[[str, pathlib.Path | None], tuple[Dataset, Images, Labels]]


def digits(side: str, data_dir: pathlib.Path | None) -> tuple[Dataset, Images, Labels]:
    """Returns one side's images `[num_images, 32, 32, 3]`, as a data set of your own does.

    No digit of MNIST is on both sides, and none in the pool is among those held out.
    """
    mnist = catalogue.load_private("mnist", data_dir=data_dir)
    start = 0 if side == "private" else SIZES["private"]
    found = mnist.inputs[start : start + SIZES[side], :, :, 0].astype(np.float32) / 255.0
    labels = np.asarray(mnist.labels[start : start + SIZES[side]], np.int64)
    random = _random(side, 0)
    images = np.empty((len(found), SIDE, SIDE, 3), np.uint8)
    apart = POOL_SIZE if side == "public" else len(found)
    for place, middle in enumerate(found):
        others = found[:apart] if place < apart else found[apart:]
        image = _ground(random)
        for shift in random.permutation([-1, 1])[: random.integers(1, 3)]:
            other = _placed(
                others[random.integers(len(others))], int(shift * random.integers(15, 20))
            )
            image = _inked(image, other, random)
        images[place] = _finished(_inked(image, _placed(middle, 0), random), random)
    return _dataset("colour_digits", tuple("0123456789")), images, labels


def letters(side: str, data_dir: pathlib.Path | None) -> tuple[Dataset, Images, Labels]:
    """Returns one side's images `[num_images, 32, 32, 3]`, likewise."""
    del data_dir  # nothing is read
    random = _random(side, 1)
    labels = random.integers(0, len(drawn.LETTERS), SIZES[side])
    images = np.empty((len(labels), SIDE, SIDE, 3), np.uint8)
    for place, label in enumerate(labels):
        ink = drawn.changed_letter(drawn.LETTERS[label], SIDE, random)
        image = _inked(_ground(random), ink, random)
        blurred = scipy.ndimage.gaussian_filter(image, (*[random.uniform(0.0, 0.9)] * 2, 0.0))
        images[place] = _finished(blurred * random.uniform(0.75, 1.25, 3), random)
    return _dataset("photographed_letters", tuple(drawn.LETTERS)), images, labels


SETS: dict[str, Load] = {"digits": digits, "letters": letters}


def _random(side: str, which: int) -> np.random.Generator:
    return np.random.default_rng([list(SIZES).index(side), which, SIDE])


def _dataset(name: str, classes: tuple[str, ...]) -> Dataset:
    return Dataset(
        name=name,
        kind="image",
        input_shape=(SIDE, SIDE, 3),
        value_range=(0.0, 255.0),
        num_classes=len(classes),
        class_names=classes,
        pool_size=POOL_SIZE,
    )


@functools.cache
def _frequencies() -> npt.NDArray[np.float64]:
    along = scipy.fft.fftfreq(SIDE)
    found = np.hypot(along[:, None], along)
    found[0, 0] = np.inf  # the mean is drawn apart
    return found


def _ground(random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Returns a coloured texture whose amplitudes are one over the frequency."""
    noise = random.normal(size=(SIDE, SIDE, 1)) + 0.3 * random.normal(size=(SIDE, SIDE, 3))
    spectrum = scipy.fft.fft2(noise, axes=(0, 1)) / _frequencies()[..., None]
    texture = scipy.fft.ifft2(spectrum, axes=(0, 1)).real
    texture *= random.uniform(5.0, 30.0) / texture.std()
    return texture + random.uniform(40.0, 215.0, 3)


def _placed(digit: npt.NDArray[np.float32], right: int) -> npt.NDArray[np.float32]:
    """Returns `[32, 32]` with a digit `[28, 28]`, some pixels to the right of the middle."""
    wide = np.zeros((SIDE, 3 * SIDE), np.float32)
    margin = (SIDE - len(digit)) // 2
    first = SIDE + margin + right
    wide[margin : margin + len(digit), first : first + len(digit)] = digit
    return wide[:, SIDE : 2 * SIDE]


def _inked(
    image: npt.NDArray[np.float64], ink: npt.NDArray[np.float32], random: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Returns an image with ink `[32, 32]`, from 0 to 1, of a colour that can be told from it."""
    ground = image.mean(axis=(0, 1))
    while True:
        colour = random.uniform(0.0, 255.0, 3)
        if abs(colour.mean() - ground.mean()) > LEAST_CONTRAST:
            return image + (colour - image) * ink[..., None]


def _finished(image: npt.NDArray[np.float64], random: np.random.Generator) -> Images:
    return np.clip(image + random.normal(0.0, 5.0, image.shape), 0.0, 255.0).astype(np.uint8)


def vectors(encoder: Encoder, images: Images) -> npt.NDArray[np.float32]:
    """Returns what feature sums are of, `[num_images, num_features]`."""
    found = record_vectors(encoder.features(images), encoder.scale)
    return found[:, :-1].astype(np.float32)


def share_right(
    pool: tuple[npt.NDArray[np.float32], Labels],
    private: tuple[npt.NDArray[np.float32], Labels],
    deviation: float,
    *,
    draws: int = 3,
) -> float:
    """Returns how many of a pool's labels noisy class sums have right, with the best ridge.

    Args:
        pool: vectors `[num_inputs, width]` and labels, by which the ridge is chosen.
        private: the same; each record's centred vector is cut to norm 1.
        deviation: of the noise of each sum.
        draws: of the noise; the mean is returned.
    """
    known = pool[0].astype(np.float64)
    mean = known.mean(axis=0)
    known -= mean
    summed = private[0] - mean
    summed /= np.maximum(1.0, np.linalg.norm(summed, axis=1, keepdims=True))
    num_classes = int(private[1].max()) + 1
    sums = summed.T @ (np.eye(num_classes)[private[1]] - 1.0 / num_classes)
    scores, scale, directions = np.linalg.svd(known, full_matrices=False)
    variances = np.square(scale) / len(known)
    ridges = np.geomspace(1e-4, 1.0, 6) * variances.sum() / 10.0

    def right(noisy: npt.NDArray[np.float64], ridge: float) -> float:
        found = scores @ ((scale / (variances + ridge))[:, np.newaxis] * (directions @ noisy))
        return float((found.argmax(axis=1) == pool[1]).mean())

    noisy = [
        sums + np.random.default_rng(draw).normal(0.0, deviation, sums.shape)
        for draw in range(draws)
    ]
    return float(np.mean([max(right(one, ridge) for ridge in ridges) for one in noisy]))


def compare_students(load: Load, flags: argparse.Namespace, folder: pathlib.Path) -> None:
    """Prints a row for each epsilon of one data set; runs lie below `folder`."""
    _, images, labels = load("private", flags.data_dir)
    dataset, inputs, known = load("public", flags.data_dir)
    images, labels = images[: flags.private], labels[: flags.private]
    is_used = np.arange(len(inputs)) < flags.public
    is_used |= np.arange(len(inputs)) >= POOL_SIZE
    data = pate_tf.Data.from_arrays(
        *(images, labels, inputs[is_used], known[is_used]),
        num_classes=dataset.num_classes,
        held_out=1.0 - flags.public / is_used.sum(),
        name=dataset.name,
    )
    sums = pate_tf.FeatureSums(directory=folder / load.__name__).fit(data.private, data.pool)
    for epsilon, num_rounds in (one for one in ASKED if one[0] in flags.epsilons):
        with pate_tf.Labeller(
            sums, epsilon=epsilon, delta=DELTA, num_rounds=num_rounds
        ) as labeller:
            found = labeller.label(data.pool)
        learnt = found.training_labels
        cells = [
            f"{len(learnt.labels):,}: {(learnt.labels == known[learnt.query_indices]).mean():.1%}",
            "linear_head" if found.prefers_linear_head else "consistency",
        ]
        for name in ("linear_head", "consistency"):
            if name == "linear_head" and found.linear_head is None:
                cells += ["-", "-"]
                continue
            student = pate_tf.Student(name).fit(data.pool, found)
            cells.append(f"{(student.predict(images[:TRIED]) == labels[:TRIED]).mean():.1%}")
            cells.append(f"{student.evaluate(data.held_out):.1%}")
        row = f"| {load.__name__} | {epsilon:g} | {num_rounds} |"
        print(row, *(f"{one} |" for one in cells), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Prints a row for each data set and representation, or epsilon."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.colour", description=__doc__)
    parser.add_argument("--representations", nargs="+", default=["patches", "wavelets"])
    parser.add_argument("--private", type=int, default=6_000, help="records summed")
    parser.add_argument("--public", type=int, default=2_000, help="inputs of the pool")
    parser.add_argument("--data_dir", type=pathlib.Path, help="where MNIST is")
    parser.add_argument("--students", action="store_true", help="compare students instead")
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument(
        "--epsilons", nargs="+", type=float, choices=list(NOISE), default=list(NOISE)
    )
    flags = parser.parse_args(arguments)
    if flags.students:
        heads = ["data set", "epsilon", "rounds", "labels right", "auto takes"]
        heads += [f"{name}, {of}" for name in ("linear head", "network") for of in ON]
        print("|", *(f"{one} |" for one in heads), flush=True)
        print("|" + "---|" * len(heads), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for name in flags.only:
                compare_students(SETS[name], flags, pathlib.Path(folder))
        return
    heads = ["data set", "representation", *(f"epsilon {one:g}" for one in flags.epsilons)]
    print("|", *(f"{one} |" for one in heads), flush=True)
    print("|" + "---|" * len(heads), flush=True)
    for load in map(SETS.__getitem__, flags.only):
        dataset, images, labels = load("private", flags.data_dir)
        images, labels = images[: flags.private], labels[: flags.private]
        _, inputs, known = load("public", flags.data_dir)
        pool = Pool(dataset, inputs[: flags.public])
        for name in flags.representations:
            encoder = encoder_of(pool, name)
            found = vectors(encoder, pool.inputs), known[: flags.public]
            summed = vectors(encoder, images), labels
            rows = [
                f"{share_right(found, summed, NOISE[one] * len(images) / SIZES['private']):.1%} |"
                for one in flags.epsilons
            ]
            print(f"| {load.__name__} | {name} |", *rows, flush=True)


if __name__ == "__main__":
    main()
