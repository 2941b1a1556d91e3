// Package ibgda decides whether kernels drive queue pairs of a network card themselves (GPU-initiated RDMA: header
// device/nic.cuh), or push triggers to a proxy on the host (package port).
//
// # Data flow
//
// [Choose] reads two variables of the environment, and asks whether there is a card:
//
//	MSCCLPP_EP_USE_IBGDA  a boolean: kernels drive the card, if one can be driven; else the proxy does, and the
//	                      log says so
//	WEFT_NIC              "software": kernels drive a card made of Go, package fabric/softnic
//
// Ranks must agree on the way: whoever chooses compares it with the peers' before anything is set up. Nothing lies
// in memory, nothing waits, and a choice costs a few microseconds, once.
package ibgda
