"""Teachers: trained on disjoint shards of the private data, stored together, and queried."""
