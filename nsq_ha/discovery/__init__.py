"""Finding things out over HTTP: who leads a partition, and the cluster's administration."""
