"""What tests stand on: stores, clusters, pods, drivers, processes. No tests in here."""
