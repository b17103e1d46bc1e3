"""The release boundary: the labeller, feature sums, the vote-aggregation graph, the noise."""
