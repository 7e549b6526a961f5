"""The control loops on a store, without an agent."""
