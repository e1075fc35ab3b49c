"""Backups: everything of a cluster in one file, and a cluster from such a file.

streams, files --> taking --> container (hashes, encrypted if asked for) --> restoring --> a home
                                  |
                                  +--> checking (hashes; streams restored aside; chains of facts)
"""
