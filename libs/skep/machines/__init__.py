"""The services' behaviour: one file, one machine. No I/O happens here."""
