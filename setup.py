"""Packaging of pate_tf; the versions that were tested together stand in constraints.txt."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "pate_tf/__init__.py").read_text())[1]

setuptools.setup(
    name="pate_tf",
    version=VERSION,
    description="Learn a public classifier from private data, with a stated privacy cost (PATE)",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Security",
    ],
    keywords="differential privacy, PATE, TensorFlow, Keras, private learning",
    python_requires=">=3.11,<3.14",
    packages=setuptools.find_packages(include=["pate_tf", "pate_tf.*"]),
    package_data={
        "pate_tf": ["py.typed"],
        "pate_tf.analysis": ["rows.toml"],
        "pate_tf.cli": ["templates/*"],
        "pate_tf.flower": ["pyproject.toml"],
        "pate_tf.ledger": ["registry.sql"],
        "pate_tf.planning": ["templates/*"],
        "pate_tf.statement": ["templates/*"],
    },
    entry_points={"console_scripts": ["pate = pate_tf.cli.main:run"]},
    install_requires=[
        "absl-py>=2.1",
        "dp-accounting>=0.6,<0.7",
        "h5py>=3.11",
        "importlib_resources",  # tensorflow-datasets needs it without saying so
        "jinja2>=3.1",
        "keras>=3.15,<4",
        "markdown-it-py>=4",
        "numpy>=2.0",
        "opendp>=0.16,<0.17",
        "pillow>=10",
        "platformdirs>=4.14",
        "pyarrow>=14",
        "scikit-learn>=1.6",
        "scipy>=1.14",
        "skops>=0.16",
        "tensorboard>=2.20",
        "tensorflow>=2.21,<2.22",
        "tensorflow-datasets>=4.9.10",
        "threadpoolctl>=3.5",
        "tqdm>=4.66",
    ],
    extras_require={
        "accounting": ["dp-accounting>=0.6,<0.7"],
        # Feature sums and teachers of records that outgrow one machine; local runners included.
        "beam": ["apache-beam>=2.77,<3"],
        # The same on a cluster of Dask.
        "cluster": ["apache-beam[dask]>=2.77,<3"],
        "docs": [
            "furo>=2025.9",
            "myst-nb>=1.4",
            "myst-parser>=5",
            "sphinx>=9",
            "sphinx-copybutton>=0.5",
        ],
        # Flower, whose interfaces change with each version. The packages of silos come with it.
        "flower": ["cryptography>=50", "flwr>=1.42,<1.43", "grpcio>=1.81.1", "protobuf>=6.33.5"],
        # Pre-trained encoders of keras-hub; tensorflow-text comes with it.
        "hub": ["keras-hub>=0.32,<0.33", "safetensors>=0.5"],
        "onnx": ["tf2onnx>=1.17,<2"],
        # Silos, parties and a coordinator, or shared training, in different processes.
        "silos": ["cryptography>=50", "grpcio>=1.81.1", "protobuf>=6.33.5"],
        "test": [
            "ai-edge-litert>=2.1",
            "apache-beam[dask]>=2.77,<3",
            "codespell>=2.4",
            "cryptography>=50",
            "dp-accounting>=0.6,<0.7",
            "flwr>=1.42,<1.43",
            "grpcio-tools>=1.81.1",
            "hypothesis>=6.100",
            "ipykernel>=6.29",
            "keras-hub>=0.32,<0.33",
            "matplotlib>=3.9",
            "mpmath>=1.3",
            "mypy>=1.11",
            "nbclient>=0.10",
            "onnxruntime>=1.23",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "pyyaml>=6",
            "ruff>=0.9",
            "safetensors>=0.5",
            "sentencepiece>=0.2",
            "tf2onnx>=1.17,<2",
        ],
    },
)
