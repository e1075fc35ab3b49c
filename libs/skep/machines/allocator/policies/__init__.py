"""What policies of virtual clusters are shown, and how their plans and trials are carried out."""
