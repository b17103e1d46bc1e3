"""The values that move through the house, with their shapes checked at the door."""
