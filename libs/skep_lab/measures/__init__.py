"""What a run comes to, in the measures of the papers: pure functions of a run's result."""
