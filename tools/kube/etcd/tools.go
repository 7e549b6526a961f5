//go:build tools

// Package tools pins the etcd server that the tests run, apart from Kubernetes because their dependencies differ.
package tools

import _ "go.etcd.io/etcd/server/v3"
