"""Reads the event files that TensorBoard would show."""

import pathlib

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import backend_context, plugin_data_pb2
from tensorboard.util import tensor_util

ALL = {"tensors": 0, "images": 0, "scalars": 0}


def accumulated(folder: pathlib.Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance=ALL).Reload()


def scalars(folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
    """Returns steps and values of every scalar in the folder of one run."""
    events = accumulated(folder)
    actual = {}
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            actual[tag] = [
                (event.step, float(tensor_util.make_ndarray(event.tensor_proto)))
                for event in events.Tensors(tag)
            ]
    return actual


def images(folder: pathlib.Path) -> dict[str, list[tuple[int, np.ndarray]]]:
    """Returns steps and pictures `[height, width, channels]` in the folder of one run."""
    events = accumulated(folder)
    actual = {}
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "images":
            actual[tag] = [
                (event.step, tf.io.decode_png(event.tensor_proto.string_val[2]).numpy())
                for event in events.Tensors(tag)
            ]
    return actual


def settings(folder: pathlib.Path) -> dict[str, object]:
    """Returns the hyperparameters in the folder of one run."""
    return {
        name: getattr(value, value.WhichOneof("kind"))
        for name, value in _session(folder).hparams.items()
    }


def trial(folder: pathlib.Path) -> str:
    """Returns the key by which TensorBoard distinguishes rows of the HPARAMS page."""
    return _session(folder).group_name


def columns(folder: pathlib.Path) -> set[str]:
    """Returns the columns of the HPARAMS page for a folder of several runs."""
    runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder))
    provider = data_provider.MultiplexerDataProvider(runs.Reload(), str(folder))
    page = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = RequestContext()
    experiment = page.experiment_from_metadata(
        request, "", True, page.hparams_metadata(request, ""), None
    )
    metrics = {metric.name.tag for metric in experiment.metric_infos}
    return metrics | {setting.name for setting in experiment.hparam_infos}


def _session(folder: pathlib.Path) -> plugin_data_pb2.SessionStartInfo:
    metadata = accumulated(folder).SummaryMetadata("_hparams_/session_start_info")
    data = plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content)
    return data.session_start_info
