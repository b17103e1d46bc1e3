"""Where a model draws at random from: its own generators, or those that a whole process shares."""

import keras
import tensorflow as tf

# Draws whose state is no variable of anybody's.
SHARED_STATE = {
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("ParameterizedTruncatedNormal", "RandomShuffle", "Multinomial", "RandomGamma"),
    *("RandomPoisson", "RandomPoissonV2"),
}
ADVICE = "give the layer a keras.random.SeedGenerator of its own, and draw with `seed=` it"


def check_draws(model: keras.Model, *, training: bool) -> None:
    """Checks that what a model computes depends on its inputs and its own variables alone.

    A shared generator, or a variable that Keras does not know, would be the same for all teachers
    of a process, and can't be exported.

    Args:
      model: built.
      training: whether it is called as in training; else as in answering.

    Raises:
      ValueError: if it reads something else.
    """
    signature = tf.TensorSpec([1, *model.input_shape[1:]], tf.float32)
    called = tf.function(lambda inputs: model(inputs, training=training), autograph=False)
    graph = called.get_concrete_function(signature).graph
    # In the scope of a strategy a variable has a part on each device, which the graph reads.
    held = [variable.value for variable in model.variables]
    parts = [part for one in held for part in getattr(one, "values", ())]
    own = {one.ref() for one in (*held, *parts)}
    for variable in graph.variables:
        if variable.ref() not in own:
            name = variable.name.partition(":")[0]
            raise ValueError(
                f"model: expected one that reads its own variables alone, got one that reads "
                f"{name}; for what it draws at random {ADVICE}"
            )
    drawn = graph.as_graph_def()
    nodes = [*drawn.node, *(node for one in drawn.library.function for node in one.node_def)]
    if any(node.op in SHARED_STATE for node in nodes):
        raise ValueError(
            f"model: expected one that draws from generators of its own alone, got one that draws "
            f"from TensorFlow's, which all share; {ADVICE}"
        )
