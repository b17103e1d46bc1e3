"""Which inputs of the pool are put to the teachers: chosen from public values alone."""
