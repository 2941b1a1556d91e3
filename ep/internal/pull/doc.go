// Package pull is the host engine of expert parallelism: the receiver of a row reads it from the
// memory of the rank that has it. Package ep's documentation has the memory layout and why the order
// is right; package engine/host has the rounds in which ranks talk.
//
//	prepare.go   every rank writes its routing metadata, reads that of all, and computes the same
//	dispatch.go  senders publish rows where they are, or stage them; receivers copy them
//	combine.go   ranks publish experts' rows; the home of a token sums them where they are
//	backward.go  the gradients: the same two moves with roles exchanged
package pull
