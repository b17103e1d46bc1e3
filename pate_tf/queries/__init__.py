"""Which inputs of the public pool are put to the teachers, and what the answers say of the rest."""
