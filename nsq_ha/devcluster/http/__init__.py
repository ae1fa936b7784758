"""The HTTP routes of nsqd and nsqlookupd."""
