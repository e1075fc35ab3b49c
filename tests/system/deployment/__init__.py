"""A cluster of machines that are network namespaces: real servers, nodes, certificates and rights."""
