"""What everything stands on: forks, threads, secrets in texts, the identity of a message, unexpected errors."""
