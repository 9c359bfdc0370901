"""What people want run: jobs, attempts, events and logs."""
