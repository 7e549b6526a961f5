"""The REST API server: HTTP routes over the store, in the shape of the Kubernetes API.

`app.py` is the entry point: `application(ServerContext(driver))` is the ASGI application. `object_routes.py` serves
every kind from the table of kinds; the other `*_routes.py` serve logs, exec, port-forward and kubeconfigs. Rules about
objects are in `aliquot.admission`, not here.
"""
