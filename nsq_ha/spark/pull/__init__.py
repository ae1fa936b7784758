"""The call by which replicas copy a log, which Spark's bulk reads use: both sides, and its format, gob."""
