"""Find the leaders of partitions over HTTP."""
