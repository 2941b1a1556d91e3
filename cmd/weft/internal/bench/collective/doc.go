// Package collective measures collectives between ranks, on the host and on GPUs.
//
// kinds.go lists them. An exchange is one of them, of one size, on one rank: the call, and what its
// operands hold. Both engines run the same exchanges, and every element of an output is compared with
// a plain loop's.
package collective
