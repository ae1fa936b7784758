"""The data of a node: logs, channels and their positions; without sockets, frames or HTTP."""
