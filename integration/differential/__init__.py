"""The same random commands to a real cluster and to the embedded one, and what they do differently."""
