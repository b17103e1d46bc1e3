"""A data set that was not used for tuning: `--dataset=benchmarks.letters:gray`, or `:color`.

The images show letters from A to J in twenty fonts of matplotlib, rotated, stretched and shifted.
There are 60,000 private and 10,000 public images, the same on every machine with the same fonts. In
color, letter and background have any two colors, independent of the class, which is hard.
"""

import functools
import importlib.resources
import pathlib

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from pate_tf.core.dataset import Dataset

LETTERS = "ABCDEFGHIJ"
SANS = ("", "-Bold", "-BoldOblique", "-Oblique")
SERIF = ("", "-Bold", "-BoldItalic", "-Italic")
FONTS = (
    *(f"DejaVuSans{kind}" for kind in SANS),
    *(f"DejaVuSerif{kind}" for kind in SERIF),
    *("DejaVuSansMono", "DejaVuSansMono-Bold"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralBolIta", "STIXGeneralItalic"),
    *("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
SIZES = {"private": 60_000, "public": 10_000}
CANVAS = 96  # pixels per side of the drawing, before it is scaled down
Images = npt.NDArray[np.uint8]


def gray(side: str, data_dir: pathlib.Path | None) -> tuple[Dataset, Images, npt.NDArray[np.int64]]:
    """Returns one side's images `[num_images, 28, 28, 1]`, as a custom data set does."""
    del data_dir  # nothing is read
    return _drawn("letters", side, (28, 28, 1))


def color(
    side: str, data_dir: pathlib.Path | None
) -> tuple[Dataset, Images, npt.NDArray[np.int64]]:
    """Returns one side's images `[num_images, 32, 32, 3]`, likewise."""
    del data_dir
    return _drawn("colour_letters", side, (32, 32, 3))


def _drawn(
    name: str, side: str, shape: tuple[int, int, int]
) -> tuple[Dataset, Images, npt.NDArray[np.int64]]:
    dataset = Dataset(
        name=name,
        kind="image",
        input_shape=shape,
        value_range=(0.0, 255.0),
        num_classes=len(LETTERS),
        class_names=tuple(LETTERS),
        pool_size=9_000,
    )
    random = np.random.default_rng([list(SIZES).index(side), *shape])
    labels = random.integers(0, len(LETTERS), SIZES[side])
    images = np.empty((len(labels), *shape), np.uint8)
    for place, label in enumerate(labels):
        ink = changed_letter(LETTERS[label], shape[0], random)
        letter, ground = _two_values(shape[2], random)
        noise = random.normal(0.0, 10.0, shape)
        images[place] = np.clip(ground + (letter - ground) * ink[..., None] + noise, 0, 255)
    return dataset, images, labels


def changed_letter(letter: str, side: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Returns a letter in a drawn font, rotated and shifted, `[side, side]` from 0 to 1."""
    return _changed(_glyph(int(random.integers(len(FONTS))), letter), side, random)


@functools.cache
def _glyph(font: int, letter: str) -> Image.Image:
    fonts = importlib.resources.files("matplotlib") / "mpl-data/fonts/ttf"
    drawn = ImageFont.truetype(str(fonts / f"{FONTS[font]}.ttf"), 38)
    image = Image.new("L", (CANVAS, CANVAS))
    canvas = ImageDraw.Draw(image)
    left, top, right, bottom = canvas.textbbox((0, 0), letter, font=drawn)
    middle = ((CANVAS - left - right) / 2, (CANVAS - top - bottom) / 2)
    canvas.text(middle, letter, font=drawn, fill=255)
    return image


def _changed(glyph: Image.Image, side: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Returns a small letter, rotated, stretched and shifted, `[side, side]` from 0 to 1."""
    angle, shear = random.uniform(-0.35, 0.35), random.uniform(-0.25, 0.25)
    size, stretch = random.uniform(1.4, 2.1), random.uniform(0.8, 1.25)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag([size * stretch, size])
    moved = CANVAS / 2 - matrix @ (side / 2 + random.uniform(-3.0, 3.0, 2))
    numbers = np.column_stack([matrix, moved]).ravel().tolist()
    pixels = glyph.transform(
        (side, side), Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR
    )
    return np.asarray(pixels, np.float32) / np.float32(255.0)


def _two_values(
    channels: int, random: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the values of a letter and its background, `[channels]` each."""
    if channels == 1:
        return random.uniform(120.0, 255.0, 1), np.zeros(1)
    while True:
        letter, ground = random.uniform(0.0, 255.0, (2, channels))
        if abs(letter.mean() - ground.mean()) > 50.0:  # otherwise it is not readable
            return letter, ground
