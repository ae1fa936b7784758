"""The demo: publish real flights over the real protocol, consume them in order by aircraft, and check the result."""
