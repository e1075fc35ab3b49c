"""How fast jobs are: rates from counts, changes of level, predictions. Pure arithmetic."""
