"""The measures of the papers: pure functions of a run's result."""
