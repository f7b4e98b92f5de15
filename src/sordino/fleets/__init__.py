"""Fleets: where clients live."""
