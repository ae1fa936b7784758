"""The main job: real flights through the real protocol, followed aircraft by aircraft, and checked."""
