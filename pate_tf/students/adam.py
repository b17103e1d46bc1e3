"""Adam with epsilon where the improved GAN's reference has it."""

from typing import Any

import keras


@keras.saving.register_keras_serializable("pate_tf")
class BiasCorrectedAdam(keras.optimizers.Adam):
    """Adam that divides by sqrt(v_hat + epsilon^2), v_hat being corrected for its bias.

    Keras divides by sqrt(v) + epsilon before the correction, which is epsilon / sqrt(1 - beta_2^t)
    after it: 32 times epsilon in the first step. Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1,
    correct first; the improved GAN adds epsilon^2 = 1e-8 under the square root.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Changes one variable."""
        ops = keras.ops
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        step = ops.cast(self.iterations + 1, variable.dtype)
        index = self._get_variable_index(variable)
        moment, velocity = self._momentums[index], self._velocities[index]
        self.assign_add(moment, (gradient - moment) * (1.0 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1.0 - self.beta_2))
        corrected_moment = moment / (1.0 - ops.power(self.beta_1, step))
        corrected_velocity = velocity / (1.0 - ops.power(self.beta_2, step))
        root = ops.sqrt(corrected_velocity + self.epsilon**2)
        self.assign_sub(variable, rate * corrected_moment / root)
