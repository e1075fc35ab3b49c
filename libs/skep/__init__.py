"""Skep's pure half: what is decided, from what is known. No clock, no input, no output."""

__version__ = "0.2.0"
