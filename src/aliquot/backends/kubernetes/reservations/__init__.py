"""Reservation pods: each holds one whole GPU of a node, so that pods with fractions of that GPU can share it.

    pod       the reservation pod as data: its manifest, the claims on its GPU, the GPU it reports
    state     what a reservation pod holds, and whether fractions of its GPU can be handed out
    acquire   claims a GPU for a pod before the pod is bound
    gc        deletes reservations that no pod uses, and recreates those that were deleted too early

Only the Kubernetes backend knows that reservation pods exist. The binder acquires reservations; the rest of the
platform sees device shares.
"""
