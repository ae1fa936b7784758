"""Reading ranges in bulk, through the call by which nsqds copy partitions from each other (``fetch=bulk``)."""
