package host

import "time"

// A Pace chooses how a rank writes memory that others read: through its caches, or past them. Which
// is faster depends on where the ranks' processors are. Under one shared cache a core takes a line
// back from its readers, and the next reader fetches it, several times as fast as through memory.
// Between two shared caches, or two sockets, taking lines back one by one is far slower than
// writing to memory. Virtual processors move from one to the other, so the choice is made by the
// clock, now and then, and concerns the writer alone: what is written is the same.
type Pace struct {
	Enough int64 // bytes per microsecond with which the caches do well
	past   bool  // write past the caches
	wait   int   // writes until the next one that is timed
	slow   int   // timed writes in a row that were slow
}

const (
	pacedBytes = 4 << 10 // the least write for which it matters

	timeOften  = 8 // writes through the caches from one that is timed to the next
	timeSeldom = 256
	slowWrites = 2 // one may have been interrupted
)

// Begin is called before n bytes are written, and says how. Its first result is for End.
func (p *Pace) Begin(n int) (start time.Time, past bool) {
	switch {
	case n < pacedBytes:
		return start, false
	case p.wait > 0:
		p.wait--
		return start, p.past
	default:
		return time.Now(), false
	}
}

// End is called when they have been written.
func (p *Pace) End(start time.Time, n int) {
	if !start.IsZero() {
		p.timed(n, time.Since(start))
	}
}

func (p *Pace) timed(n int, d time.Duration) {
	if int64(n)*int64(time.Microsecond) >= p.Enough*int64(d) {
		p.past, p.slow, p.wait = false, 0, timeOften
		return
	}
	if p.slow++; p.slow < slowWrites && !p.past {
		return // time the next one too
	}
	p.past, p.slow, p.wait = true, 0, timeSeldom
}

// Past says whether writes go past the caches now.
func (p *Pace) Past() bool { return p.past }
