"""Measurements on networks: how equivariant they are between the grid's elements."""
