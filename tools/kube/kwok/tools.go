//go:build tools

// Package tools pins KWOK, which stands in for the kubelets of hundreds of nodes.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
