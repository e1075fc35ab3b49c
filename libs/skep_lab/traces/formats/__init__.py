"""Published formats of traces, and Skep's own."""
