#!/usr/bin/env python
"""Django's command line for this project; `gpusched-server` is the same, installed."""

from gpusched.server import main

if __name__ == "__main__":
    main()
