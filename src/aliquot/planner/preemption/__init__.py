"""Steps 3 to 6 of the cycle: evictions.

`driver.make_room` runs consolidate, reclaim and preempt. `rules` says which jobs may be evicted for which. The two ways
to choose victims (`least_disruption`, `newest_first`) share `search`. `stale_gangs` is step 6. Placement on nodes is in
`placement`, quota and fair share are in `queues`.
"""
