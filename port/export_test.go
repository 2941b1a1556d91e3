package port

import "time"

// Sights lets the proxy note when it has seen each flush that kernels push from now on, behind what else the trigger
// asks for.
func (k *Kernels) Sights(note func(time.Time)) {
	x, told := k.proxy, k.ring.flushed
	x.call(func() {
		k.ring.flushed = func(l *lane, position uint64) {
			now := time.Now()
			told(l, position)
			note(now)
		}
	})
}
