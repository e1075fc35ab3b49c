"""What a policy sees of a virtual cluster, and what it may propose: frozen, free of machinery."""
