"""Gandiva's introspective mode: what is tried beside the turns, and kept if rates say so."""
