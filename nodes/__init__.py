"""What there is to run on: nodes, devices, allocations, readings; and the talk with their agents."""
