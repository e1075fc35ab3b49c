"""Rules of order and placement: pure functions, one file per rule."""
