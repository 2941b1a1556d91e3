// Package engine has the parts that the engines of operations share, on the host and on GPUs.
// Package engine/gpu has the parts of those on GPUs.
package engine
