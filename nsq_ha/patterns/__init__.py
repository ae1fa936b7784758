"""Regular expressions and globs as nsqd's filters understand them: Go's ``regexp`` and ``gobwas/glob``.

Python's ``re`` accepts other expressions, and can take exponential time. Everything here is pure.
"""
