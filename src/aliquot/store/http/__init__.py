"""HTTP access to Kubernetes-style APIs: `client` wraps the HTTP library, `transport` adds tokens, timeouts and retries.

`kubeconfig` and `credentials` find the server and log in; `errors` translates error answers.
"""
