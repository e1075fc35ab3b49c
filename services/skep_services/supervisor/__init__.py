"""The embedded cluster: one state folder, one supervisor process, and the processes it keeps up."""
