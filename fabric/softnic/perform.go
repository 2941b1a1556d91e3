package softnic

import (
	"encoding/binary"

	"github.com/weftgo/weft/fabric/mlx5"
)

// pieceBytes is the unit in which writes land.
const pieceBytes = 64

// lateSteps is for how many steps a piece may be late.
const lateSteps = 1 << 13

// piece is a part of a write that has not landed.
type piece struct {
	number   uint64 // of its entry
	to, from []byte
	held     bool   // from is the card's own
	due      uint64 // the step before which it does not land
}

// perform carries out an entry.
func (q *Queue) perform(e *mlx5.Entry) mlx5.Syndrome {
	switch e.Opcode {
	case mlx5.Nop:
		return 0
	case mlx5.Write:
		return q.write(e)
	case mlx5.FetchAdd, mlx5.MaskedFetchAdd:
		return q.add(e)
	}
	return mlx5.RemoteRequest // a card would; its peer has no receive posted, or this package no use for it
}

// write makes pieces of a write. The source is read when each lands, which is before the completion.
func (q *Queue) write(e *mlx5.Entry) mlx5.Syndrome {
	length := uint64(e.Local.Bytes)
	from, held := e.Inline, true
	if len(e.Inline) > 0 {
		length = uint64(len(from))
		from = append([]byte(nil), from...)
	} else if length == 0 {
		return 0
	} else if from, held = q.nic.find(e.Local, length, 0), false; from == nil {
		return mlx5.LocalProtection
	}
	to := q.nic.find(e.Remote, length, RemoteWrite)
	if to == nil {
		return mlx5.RemoteAccess
	}
	if q.nic.options.Early && !held {
		source := make([]byte, length)
		move(source, from)
		from, held = source, true
	}
	for at := e.Remote.Address; len(to) > 0; {
		n := min(int(pieceBytes-at%pieceBytes), len(to))
		due := q.steps
		if q.nic.chance(16) {
			due += q.nic.random.Uint64N(lateSteps >> q.nic.random.IntN(8))
		}
		q.landing = append(q.landing, piece{q.executed, to[:n], from[:n], held, due})
		to, from, at = to[n:], from[n:], at+uint64(n)
	}
	return 0
}

// land lets a piece land: the first, or one by seed that may.
func (q *Queue) land() {
	i := 0
	if q.nic.random != nil {
		i = q.nic.random.IntN(len(q.landing))
	}
	p := q.landing[i]
	if p.due > q.steps {
		return
	}
	if p.held {
		store(p.to, p.from)
	} else {
		move(p.to, p.from)
	}
	if q.nic.random == nil {
		q.landing = q.landing[1:]
		return
	}
	last := len(q.landing) - 1
	q.landing[i] = q.landing[last]
	q.landing = q.landing[:last]
}

// landAll lands all that is underway.
func (q *Queue) landAll() {
	for len(q.landing) > 0 {
		q.steps += lateSteps
		q.land()
	}
}

// landed reports whether an entry's bytes are there, and those of all before it.
func (q *Queue) landed(number uint64) bool {
	for _, p := range q.landing {
		if p.number <= number {
			return false
		}
	}
	return true
}

// add adds to a word of the peer's, and brings the old value home in big-endian order.
func (q *Queue) add(e *mlx5.Entry) mlx5.Syndrome {
	width := uint64(e.Width())
	home := q.nic.find(e.Local, width, 0)
	if home == nil {
		return mlx5.LocalProtection
	}
	if e.Remote.Address%width != 0 {
		return mlx5.RemoteRequest
	}
	to := q.nic.find(e.Remote, width, RemoteAtomic)
	switch {
	case to == nil:
		return mlx5.RemoteAccess
	case !aligned(to, uintptr(width)):
		return mlx5.RemoteOperation
	}
	var old [8]byte
	if width == 4 {
		w := word4(to, 0)
		for {
			v := w.Load()
			if w.CompareAndSwap(v, uint32(fields(uint64(v), e.Add, e.Compare))) {
				binary.BigEndian.PutUint32(old[:], v)
				break
			}
		}
	} else {
		w := word8(to, 0)
		boundary := e.Compare
		if e.Opcode == mlx5.FetchAdd {
			boundary = 0
		}
		for {
			v := w.Load()
			if w.CompareAndSwap(v, fields(v, e.Add, boundary)) {
				binary.BigEndian.PutUint64(old[:], v)
				break
			}
		}
	}
	store(home, old[:width])
	return 0
}

// fields adds fields of a word, from whose last bits, the boundary's, nothing is carried.
func fields(a, b, boundary uint64) uint64 {
	return ((a &^ boundary) + (b &^ boundary)) ^ ((a ^ b) & boundary)
}
