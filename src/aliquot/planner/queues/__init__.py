"""Queues (projects and departments) in one node pool: quota, fair share and order.

`queue_tree` holds what each queue uses and may keep, `fair_share` divides resources, `quota` says whether a queue may
hold more. `queue_order` decides which job comes next, and `queue_position` reports a waiting job's position. Which node
a job gets is decided in `placement`.
"""
