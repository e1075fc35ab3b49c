"""A job that is a shell: its terminal outlives the people who attach to it. See `holder`."""
