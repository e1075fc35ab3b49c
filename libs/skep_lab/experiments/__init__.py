"""The papers' experiments, run end to end: what is drawn, what is compared, what comes out."""
