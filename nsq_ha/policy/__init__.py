"""What we decide: pure rules without I/O, clock or randomness.

Time comes in as an argument, chance as a callable that returns 0..1.
"""
