"""What chooses: where gangs go, who yields, which VC bears bad cells. Changes no state."""
