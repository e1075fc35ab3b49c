"""Where jobs get GPUs: from the cells of their virtual cluster, or lent from idle ones."""
