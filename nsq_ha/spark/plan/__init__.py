"""The driver's side of a read: offsets, ranges and data loss."""
