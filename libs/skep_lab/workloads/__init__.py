"""How fast jobs of known models go: on which GPU, spread how, beside whom."""
