package softnic

import "github.com/weftgo/weft/fabric/mlx5"

// Fault is what happens to an entry.
type Fault struct {
	// Retries is how often the card tries in vain before: the peer does not answer, or is not ready.
	Retries int
	// Syndrome is the entry's end, also one that no card has; 0: it is carried out.
	Syndrome mlx5.Syndrome
	Vendor   uint8 // 0: some code
}

// Fail gives an entry a fault, by its number from 0.
func (q *Queue) Fail(entry uint64, f Fault) {
	q.nic.mu.Lock()
	defer q.nic.mu.Unlock()
	q.faults[entry] = f
}

// Drop loses the next so many rings. The record tells of what they announced, a while later.
func (q *Queue) Drop(rings int) {
	q.nic.mu.Lock()
	defer q.nic.mu.Unlock()
	q.drop = rings
}

// Kill takes the peer away: the next entry fails, the later ones are flushed.
func (q *Queue) Kill() {
	q.nic.mu.Lock()
	defer q.nic.mu.Unlock()
	q.dead = true
}

// Stall stops the queue, which then fills, or lets it go on.
func (q *Queue) Stall(on bool) {
	q.nic.mu.Lock()
	defer q.nic.mu.Unlock()
	q.stalled = on
}
