"""Scattering features of images: fixed wavelets, of which nothing is learnt.

Linear classifiers of these are what DP-SGD does best with on small images (Tramèr and Boneh, ICLR
2021, arXiv 2011.11660). The transform is Oyallon and Mallat's (2015) with two scales and eight
angles: local means of an image, of its wavelets' lengths, and of these lengths' own wavelets. The
known library for it, kymatio 0.3.0, does not import beside SciPy 1.17.
"""

import numpy as np
import numpy.typing as npt
import scipy.fft

SCALES, ANGLES = 2, 8
STRIDE = 2**SCALES  # pixels between means
MOST_PIXELS = 32  # along a side; of larger images blocks count as one pixel
CHUNK = 64  # images in memory together


def wavelets(size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Returns Morlet wavelets in frequencies, `[scales, angles, height, width]`."""
    found = [
        [
            _morlet(size, width=0.8 * 2**scale, angle=angle, frequency=0.75 * np.pi / 2**scale)
            for angle in np.arange(ANGLES) * np.pi / ANGLES
        ]
        for scale in range(SCALES)
    ]
    # Opposite pixels of a wavelet are conjugates, but at the edge of an even side.
    return scipy.fft.fft2(np.array(found)).real.astype(np.float32)


def _morlet(size: tuple[int, int], *, width: float, angle: float, frequency: float):
    down, right = (_distances(length) for length in size)
    along = down[:, np.newaxis] * np.cos(angle) + right * np.sin(angle)
    across = right * np.cos(angle) - down[:, np.newaxis] * np.sin(angle)
    slant = 4.0 / ANGLES
    window = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * width**2))
    window *= slant / (2.0 * np.pi * width**2)
    wave = window * np.exp(1j * frequency * along)
    return wave - window * (wave.sum() / window.sum())  # blind to the mean


def _distances(length: int) -> npt.NDArray[np.float64]:
    return (np.arange(length) + length // 2) % length - length // 2.0


def means(length: int, padded: int) -> npt.NDArray[np.float32]:
    """Returns Gaussian means along one axis, every `STRIDE` pixels: `[num_means, padded]`."""
    centres = STRIDE * np.arange(1, 1 + length // STRIDE)
    width = 0.8 * 2 ** (SCALES - 1)
    found = np.exp(-((np.arange(padded) - centres[:, np.newaxis]) ** 2) / (2.0 * width**2))
    return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)


def scattering(images: npt.NDArray) -> npt.NDArray[np.float32]:
    """Returns features `[num_images, 81 * channels * (height // 4) * (width // 4)]`.

    Each depends on its own image alone.

    Args:
      images: `[num_images, height, width, channels]`, at least 4 pixels along each side.
    """
    block = -(-max(images.shape[1:3]) // MOST_PIXELS)
    shape = [side // block for side in images.shape[1:3]]
    padded = tuple(length + 2 * STRIDE for length in shape)
    filters = wavelets(padded)
    rows, columns = (means(*both) for both in zip(shape, padded, strict=True))
    around = [(STRIDE, STRIDE)] * 2

    def local(lengths: npt.NDArray) -> npt.NDArray[np.float32]:
        found = np.einsum("rh,...hw,cw->...rc", rows, lengths, columns, optimize=True)
        return found.reshape(len(lengths), -1, *found.shape[-2:])

    parts = []
    for start in range(0, len(images), CHUNK):
        chunk = images[start : start + CHUNK, : shape[0] * block, : shape[1] * block]
        blocks = chunk.reshape(len(chunk), shape[0], block, shape[1], block, -1)
        pixels = np.moveaxis(blocks.mean(axis=(2, 4), dtype=np.float32), 3, 1)
        whole = np.pad(pixels, [(0, 0), (0, 0), *around], mode="reflect")
        order_0 = whole[:, :, np.newaxis, np.newaxis]
        order_1 = np.abs(scipy.fft.ifft2(scipy.fft.fft2(order_0) * filters))
        order_2 = [
            np.abs(scipy.fft.ifft2(scipy.fft.fft2(order_1[:, :, scale, :, None]) * filters[larger]))
            for scale in range(SCALES)
            for larger in range(scale + 1, SCALES)
        ]
        found = [local(order) for order in (order_0, order_1, *order_2)]
        parts.append(np.concatenate(found, axis=1).reshape(len(chunk), -1))
    return np.concatenate(parts)
