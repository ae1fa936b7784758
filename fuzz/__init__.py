"""Fuzz targets: what must hold for each input from outside, whatever its bytes are."""
