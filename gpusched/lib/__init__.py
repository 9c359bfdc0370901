"""The server's lowest layer: code that every app uses and none of them owns."""
