"""What the cluster decides: who leads, who is in sync, and what the nsqlookupds know of it."""
