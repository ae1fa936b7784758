"""What the clients of one event loop share: lookups, known nsqds, and connections to them."""
