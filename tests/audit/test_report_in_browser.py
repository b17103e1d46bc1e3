"""The report in a real browser: at two widths, light and dark, and printed on two sheets."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

import pate_tf
from pate_tf.audit import audit_run, report_page

pytestmark = pytest.mark.long

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if not BROWSER:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    root = tmp_path_factory.mktemp("report")
    data = pate_tf.datasets.load("digits")
    teachers = pate_tf.Teachers(
        "nearest_mean", num_teachers=20, representation="raw", directory=root / "run"
    )
    fitted = pate_tf.fit(
        data,
        mechanism=pate_tf.LaplaceNoisyMax(scale=4.0),
        num_queries=50,
        delta=1e-5,
        source=teachers,
        student=pate_tf.Student("supervised", steps=30),
    )
    fitted.publish(root / "run" / "released")
    audit_run(root / "run", data=data)
    (root / "report.html").write_text(report_page(root / "run"))
    return root / "report.html"


def browse(*arguments):
    subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments],
        check=True,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize("width", [380, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits_and_follows_the_scheme(page, tmp_path, width, scheme):
    # A window is at least 500 wide; a frame is not.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<!DOCTYPE html><body style="margin:0"><iframe id="f" src="{page.as_uri()}" '
        f'style="border:0;width:{width}px;height:3000px"></iframe>'
    )
    shot = tmp_path / "shot.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(*dark, "--window-size=1200,3000", f"--screenshot={shot}", frame.as_uri())
    pixels = np.asarray(Image.open(shot).convert("L"))[:, :width].astype(int)
    background = np.bincount(pixels.ravel()).argmax()
    assert (background < 64) == (scheme == "dark")
    assert (background > 192) == (scheme == "light")
    # Something is drawn, and nothing is cut off at the right: the margin is empty.
    assert (np.abs(pixels - background) > 40).mean() > 0.01
    assert (np.abs(pixels[:, -10:] - background) <= 40).all()


def test_it_prints_to_two_sheets(page, tmp_path):
    pdf = tmp_path / "report.pdf"
    browse("--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.as_uri())
    assert len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) <= 2
