"""Serves a SavedModel from C, as TensorFlow Serving does from C++."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

SOURCE = pathlib.Path(__file__).with_name("classify.c")


@pytest.fixture(scope="module")
def classify(tmp_path_factory) -> pathlib.Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc on this machine")
    program = tmp_path_factory.mktemp("program") / "classify"
    libraries = tf.sysconfig.get_lib()
    command = [compiler, "-Wall", "-Werror", f"-I{tf.sysconfig.get_include()}", str(SOURCE)]
    command += ["-o", str(program), f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    command += ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    command += ["-fuse-ld=gold"] if shutil.which("ld.gold") else []  # a quarter of the time
    subprocess.run(command, check=True, timeout=120)
    return program


def operations(folder: pathlib.Path) -> list[str]:
    """Returns the names of the input and label operations, and the output number of the label."""
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    (image,), label = signature.inputs.values(), signature.outputs["label"]
    assert image.name.endswith(":0")
    return [image.name[:-2], *label.name.split(":")]


def run(classify, student, images, shape) -> subprocess.CompletedProcess:
    return subprocess.run(
        [classify, student.folder, *operations(student.folder), images, *map(str, shape)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_c_program_gives_the_labels_of_keras(classify, digits, tmp_path):
    (tmp_path / "images").write_bytes(digits.inputs.tobytes())
    ended = run(classify, digits, tmp_path / "images", digits.dataset.input_shape)
    assert ended.returncode == 0, ended.stderr[-2000:]
    np.testing.assert_array_equal([int(line) for line in ended.stdout.split()], digits.labels)
