"""What clients share, and what they connect with: lookups, the life of a connection, and its bytes."""
