"""Cacheless attention over packed segments."""
