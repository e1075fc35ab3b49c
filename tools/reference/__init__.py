"""The pages of docs/reference that come from the code."""
