"""Packages of the package index that targets need; constraints.txt pins them."""

PYPI = [
    "@pypi//absl_py",
    "@pypi//cryptography",
    "@pypi//dp_accounting",
    "@pypi//grpcio",
    "@pypi//grpcio_health_checking",
    "@pypi//importlib_resources",
    "@pypi//matplotlib",
    "@pypi//numpy",
    "@pypi//opendp",
    "@pypi//protobuf",
    "@pypi//scikit_learn",
    "@pypi//scipy",
    "@pypi//skops",
    "@pypi//tensorboard",
    "@pypi//tensorflow",
    "@pypi//tensorflow_datasets",
    "@pypi//tensorflow_serving_api",
    "@pypi//threadpoolctl",
    "@pypi//tqdm",
]

TEST_PYPI = [
    "@pypi//ai_edge_litert",
    "@pypi//coverage",
    "@pypi//grpcio_tools",
    "@pypi//hypothesis",
    "@pypi//ipykernel",
    "@pypi//mpmath",
    "@pypi//mypy",
    "@pypi//nbclient",
    "@pypi//onnxruntime",
    "@pypi//pytest",
    "@pypi//pytest_xdist",
    "@pypi//ruff",
    "@pypi//tf2onnx",
]
