"""Speed, measured as ratios within one run. ``python -m benchmarks`` tells what there is."""
