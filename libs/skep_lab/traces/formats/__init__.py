"""Traces in the forms in which others published them, and in Skep's own."""
