"""What the platform tells its operators: structured logs (`logs`) and Prometheus metrics (`metrics`).

Only formats and instruments belong here. What is logged or measured is decided where it happens.
"""
