"""What people see: pages, the live feed and its socket."""
