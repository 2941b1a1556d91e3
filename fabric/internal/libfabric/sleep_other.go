//go:build !linux

package libfabric

import "time"

// Sleep waits: this system is not one of those on which the queue's descriptor was tried.
func (e *Endpoint) Sleep(most time.Duration) { time.Sleep(most) }
