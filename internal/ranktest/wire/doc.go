// Package wire joins two network namespaces, hosts of a test, by a wire that delays, loses, cuts and resets as the
// test says: what netem does where the kernel has it.
//
//	host 0: 10.78.0.1 -- TUN device -- goroutine -- TUN device -- 10.78.0.2 :host 1
//
// Nothing outside of the namespaces changes, and they end with the test and its processes. Where they are forbidden
// the test is skipped, with WEFT_REQUIRE_NETNS=1 it fails.
package wire
