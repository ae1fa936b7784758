"""What a process has once: its open clients and their metrics, the loop of its threads, its signals."""
