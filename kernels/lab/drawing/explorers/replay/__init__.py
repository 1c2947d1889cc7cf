"""The replay: a recorded call, shown request by request in a page that needs no kernel."""
