"""Move bytes between this process and one nsqd."""
