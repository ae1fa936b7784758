"""The decisions of the cluster: leaders, in-sync replicas, and their announcement to the nsqlookupds."""
