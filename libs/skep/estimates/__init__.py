"""When jobs start and end: as P10, P50 and P90, and how often that held."""
