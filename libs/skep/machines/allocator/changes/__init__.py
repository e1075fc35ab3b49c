"""How running jobs are changed: requests, the rounds of a change, its answers, and how it ends."""
