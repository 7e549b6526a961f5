"""What runs pods. `backend.py` is the interface that the rest of the platform sees.

`local` is the agent of this machine; `kubernetes` lets a cluster's kubelets run them. The two do not import each
other. Rules about GPUs that both follow belong to `aliquot.gpu`.
"""
