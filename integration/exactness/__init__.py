"""Random runs of Spark queries through faults, whose rows are compared with what was written: see ``__main__``."""
