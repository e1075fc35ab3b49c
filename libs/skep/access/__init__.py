"""People and their rights: who may do what, by one table that the gateway and admission read."""
