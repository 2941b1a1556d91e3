// Package engine has the parts that engines on the host and on GPUs share. Package engine/host has
// those of engines on the host, engine/gpu those of engines on GPUs.
package engine
