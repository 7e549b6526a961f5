"""GPU sharing rules that every back end follows; nothing here runs a pod or talks to a driver.

    fractions      what a pod is allocated on each GPU, in bytes of memory and thousandths of compute time
    injection      the files, mounts, variables and device files that a pod with GPUs is given
    limits_file    the file that tells the sharing library its limits: rendered, read, changed
    ledger         the file in which the sharing library counts what a pod's processes hold

`injection.build_injection` is the entry point. How an injection is carried out belongs to the back ends.
"""
