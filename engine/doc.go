// Package engine has what the engines of operations have in common, on the host and on GPUs.
// Package engine/gpu is what those on GPUs are made of.
package engine
