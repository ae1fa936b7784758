"""Programs on other clients of the partitioned server, and tests that exchange messages with them."""
