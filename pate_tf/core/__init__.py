"""Values with checked shapes, sensitive and public apart; files written whole; the partition."""
