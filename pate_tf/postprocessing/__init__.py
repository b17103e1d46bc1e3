"""What is computed from released numbers alone: labels, weights. No private value is seen here."""
