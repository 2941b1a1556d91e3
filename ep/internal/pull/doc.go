// Package pull is the host engine of expert parallelism: the receiver of a row reads it from the
// memory of the rank that has it. Package ep's documentation has the memory layout and why the order
// is right; package engine/host has the rounds in which ranks talk.
//
//	prepare.go   every rank writes its routing metadata, reads that of all, and computes the same
//	dispatch.go  rows are offered where they are, or staged; their receivers copy them into place
//	combine.go   experts' rows are offered; the home of a token sums them where they are
//	backward.go  the gradients: the same two moves with roles exchanged
package pull
