"""One module a client, each run in a process and an environment of its own; see ``measure``."""
