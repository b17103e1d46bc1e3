"""Data sets by name, loaded as private and public examples, and label-preserving augmentation."""
