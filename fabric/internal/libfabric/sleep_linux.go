package libfabric

import (
	"time"

	"golang.org/x/sys/unix"
)

// Sleep waits for the queue's descriptor. An interrupted wait is one that ends early.
func (e *Endpoint) Sleep(most time.Duration) {
	_, _ = unix.Poll([]unix.PollFd{{Fd: e.ready, Events: unix.POLLIN}}, int((most+time.Millisecond-1)/time.Millisecond))
}
