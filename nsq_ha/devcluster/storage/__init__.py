"""What a node stores: logs, channels and their positions. Knows no sockets, frames or HTTP."""
