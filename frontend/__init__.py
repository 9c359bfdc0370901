"""The web interface: pages, the live feed and its socket."""
