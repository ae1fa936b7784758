"""Histories of loads: every call, delivery and finish as a line of JSON, and a checker that reads them offline."""
