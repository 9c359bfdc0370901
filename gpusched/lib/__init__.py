"""The ground floor of the server: what every app stands on and none of them owns."""
