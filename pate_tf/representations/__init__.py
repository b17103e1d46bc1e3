"""What inputs of the public pool look like: features, and labels spread over neighbours."""
