"""The client's decisions: pure rules without I/O, clock or randomness.

Time is passed in as an argument, chance as a callable that returns 0..1.
"""
