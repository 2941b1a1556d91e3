package gpu

import "testing"

// TestTracePause: a ring that fills in less than tracePeriod is read sooner, as soon as it is half full.
func TestTracePause(t *testing.T) {
	const ring = 256
	if pause(0, ring) != tracePeriod || pause(ring/2, ring) != tracePeriod {
		t.Error("a ring that fills slowly is read often")
	}
	if pause(ring/2+1, ring) != busyPeriod || pause(100*ring, ring) != busyPeriod {
		t.Error("a ring that fills fast is not read often")
	}
}
