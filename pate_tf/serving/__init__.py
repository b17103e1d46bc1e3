"""Exports students as SavedModels for TensorFlow Serving, and loads them."""
