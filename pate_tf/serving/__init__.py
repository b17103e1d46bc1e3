"""Students as SavedModels, which TensorFlow Serving loads."""
