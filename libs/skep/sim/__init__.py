"""The services' own machines under a virtual clock, with everything going wrong that can."""
