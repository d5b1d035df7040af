// Package chart tests the Helm chart and the compose file of deploy. It renders the chart with Helm's own code, decodes
// what comes out strictly, gives the settings in it to the program, and runs real nodes with them. It runs the commands
// of docs/operations/kubernetes.md that need no cluster. The package judge asks the code of Kubernetes' API server.
// Nothing here contacts a cluster.
package chart
