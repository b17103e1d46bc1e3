"""Choice of queries from the public pool, and the released labels."""
