"""The devices of a process: binding, memory and its share, suspension, fake GPUs."""
