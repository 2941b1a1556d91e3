// Package hosts makes network namespaces that stand for hosts: each with an interface and an address of
// its own, all joined by a bridge.
//
//	host 0          host 1          host 2        namespaces
//	10.77.0.1       10.77.0.2       10.77.0.3     addresses of their interfaces "weft"
//	    \               |               /         pairs of virtual Ethernet
//	     '------------ hub ------------'          a namespace with a bridge
//
// The namespaces have no names. They live as long as a process runs in them or a descriptor of this
// process refers to them. Hence nothing is left when this process and what it started have ended, by
// whatever signal, and nothing is changed outside of them.
//
// A namespace is a thread's: a goroutine that is locked to its thread enters one, starts a process, which
// inherits it, and goes back.
package hosts
