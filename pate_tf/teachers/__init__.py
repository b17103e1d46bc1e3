"""Teachers: trained on disjoint shares of the private data, saved together, asked for votes."""
