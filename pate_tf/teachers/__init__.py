"""Teachers: trained on disjoint shares of the private data, kept together, asked for votes."""
