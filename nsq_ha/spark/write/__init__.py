"""Publishing the rows of one task."""
