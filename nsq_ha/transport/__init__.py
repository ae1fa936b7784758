"""What moves bytes between this process and one nsqd."""
