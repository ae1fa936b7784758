"""One nsqd process and its TCP protocol."""
