"""Open files for measurements with thousands of connections."""

import resource


def allow_descriptors() -> int:
    """Let this process open as many files as the system allows; return how many that are."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
