"""Exports students as SavedModels, which TensorFlow Serving loads, and reads them."""
