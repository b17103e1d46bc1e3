"""The door: it pays, then it answers. The labeller, and the graph that counts votes."""
