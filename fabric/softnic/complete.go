package softnic

import (
	"encoding/binary"

	"github.com/weftgo/weft/fabric/mlx5"
)

// result is a completion to be written.
type result struct {
	number     uint64 // of the entry
	completion mlx5.Completion
}

// consume reads how many completions were read.
func (q *Queue) consume() {
	now := mlx5.ReadRecord(word4(q.memory.Consumer, 0).Load())
	if now > mlx5.ConsumeMask {
		q.nic.violation(q, "the consumer record holds %#x", now)
		return
	}
	more := (uint64(now) - q.taken) & mlx5.ConsumeMask
	if more > uint64(len(q.covers)) {
		q.nic.violation(q, "%d completions were taken of %d", more, len(q.covers))
		return
	}
	q.taken += more
	if more > 0 {
		q.freed = q.covers[more-1]
		q.covers = q.covers[more:]
	}
}

// complete writes the next completion, with a seed in two steps, and reports whether it did anything.
func (q *Queue) complete() bool {
	r := &q.waiting[0]
	if !q.nic.options.Early && !q.landed(r.number) {
		return false
	}
	var entry [mlx5.CompletionBytes]byte
	r.completion.Encode(&entry, q.produced, q.log)
	size := uint64(1) << q.log
	at := q.memory.Completions[q.produced%size*mlx5.CompletionBytes:][:mlx5.CompletionBytes]
	if !q.opened {
		if q.consume(); q.halted {
			return false
		}
		if q.produced-q.taken >= size {
			q.nic.violation(q, "the completion queue is full: %d written, %d taken", q.produced, q.taken)
			return false
		}
		move(at[:mlx5.StatusAt], entry[:mlx5.StatusAt])
		q.opened = true
		if q.nic.chance(2) {
			return true
		}
	}
	// A reader that has seen the completion may take it at once.
	q.covers = append(q.covers, r.number+1)
	word4(at, mlx5.StatusAt).Store(binary.NativeEndian.Uint32(entry[mlx5.StatusAt:]))
	q.opened = false
	q.produced++
	q.waiting = q.waiting[1:]
	return true
}
