"""Data-parallel gangs that change their size while they train."""
