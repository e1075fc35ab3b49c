"""What chooses: where gangs go, which jobs yield, which VC bears bad cells. Changes no state."""
