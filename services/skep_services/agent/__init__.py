"""The agent, one per node. The package stays empty: the runner imports it on every start."""
