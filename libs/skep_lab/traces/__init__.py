"""Jobs of the past: traces that others published, generators of papers, Skep's own log."""
