"""Storage: watchable objects with versions, behind one interface.

`driver.StoreDriver` is the interface, `drivers/` implements it, and `typed_store.Store` is what controllers use.
`informer` keeps local caches. `object_rules` and `object_table` hold the semantics of writes that the embedded drivers
share. `http/` is the HTTP client of the drivers that talk to a server. Kinds and their fields belong to `aliquot.api`.
"""
