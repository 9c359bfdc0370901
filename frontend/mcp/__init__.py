"""The Model Context Protocol at `/mcp`: AI agents read the cluster, and act on it if an admin allows that."""
