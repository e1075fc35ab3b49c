"""The vault: keeps secrets sealed, and hands them to the node that runs the job."""
