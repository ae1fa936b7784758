"""What hostile peers cost a client: memory above idle, and the time until their connections are closed."""
