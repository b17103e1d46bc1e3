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
"""

import argparse
import functools
import pathlib

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.ndimage

from benchmarks import letters as drawn
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data import catalogue
from pate_tf.representations.catalogue import encoder_of

SIDE = 32
SIZES = {"private": 45_000, "public": 11_000}
POOL_SIZE = 10_000  # of the public ones; the others are held out
LEAST_CONTRAST = 40.0  # between the middle one's mean brightness and its ground's
NOISE = {1.0: 7.46, 0.1: 61.5}  # by epsilon: deviation of each sum
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


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


def share_right(
    pool: tuple[npt.NDArray[np.float32], Labels],
    private: tuple[npt.NDArray[np.float32], Labels],
    deviation: float,
    *,
    draws: int = 3,
) -> float:
    """Returns how many of a pool's labels noisy class sums have right, with the best ridge.

    Args:
        pool: features `[num_inputs, width]` and labels, by which the ridge is chosen.
        private: the same; each record's centred features are cut to norm 1.
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


def main(arguments: list[str] | None = None) -> None:
    """Prints a row for each data set and representation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.colour", description=__doc__)
    parser.add_argument("--representations", nargs="+", default=["patches", "wavelets"])
    parser.add_argument("--private", type=int, default=6_000, help="records summed")
    parser.add_argument("--public", type=int, default=2_000, help="inputs of the pool")
    parser.add_argument("--data_dir", type=pathlib.Path, help="where MNIST is")
    flags = parser.parse_args(arguments)
    print("| data set | representation |", *(f"epsilon {one:g} |" for one in NOISE), flush=True)
    print("|---|---|" + "---|" * len(NOISE), flush=True)
    for load in (digits, letters):
        dataset, images, labels = load("private", flags.data_dir)
        images, labels = images[: flags.private], labels[: flags.private]
        _, inputs, known = load("public", flags.data_dir)
        pool = Pool(dataset, inputs[: flags.public])
        for name in flags.representations:
            encoder = encoder_of(pool, name)
            found = (encoder.features(pool.inputs), known[: flags.public])
            summed = (encoder.features(images), labels)
            rows = [
                f"{share_right(found, summed, each * len(images) / SIZES['private']):.1%} |"
                for each in NOISE.values()
            ]
            print(f"| {load.__name__} | {name} |", *rows, flush=True)


if __name__ == "__main__":
    main()
