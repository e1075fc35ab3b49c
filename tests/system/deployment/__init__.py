"""A cluster of machines that are network namespaces: with servers, nodes and certificates."""
