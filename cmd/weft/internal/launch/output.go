package launch

import (
	"bufio"
	"errors"
	"io"
	"time"
)

// maxLine bounds the memory that a rank which never ends its line can take; a
// longer line is cut there.
const maxLine = 1 << 20

// readLines calls put for every line of r without its end. Text after the last line end counts as a
// line. It returns when r ends or fails.
func readLines(r io.Reader, put func(line string)) {
	b := bufio.NewReaderSize(r, 64<<10)
	var long []byte
	for {
		part, err := b.ReadSlice('\n')
		switch {
		case err == nil:
			part = part[:len(part)-1]
			put(string(long) + string(part))
			long = long[:0]
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			if long = append(long, part...); len(long) >= maxLine {
				put(string(long))
				long = long[:0]
			}
			continue
		}
		if len(long)+len(part) > 0 {
			put(string(long) + string(part))
		}
		return
	}
}

// mux feeds one sink from many readers and one loop.
type mux struct {
	sink    Sink
	lines   chan Event // unbuffered: a reader goes on when its line is the sink's
	control chan Event // never full: its capacity is all that the loop can say
	broken  chan error // the sink's first error
	done    chan struct{}
}

func newMux(sink Sink, controls int) *mux {
	m := &mux{
		sink: sink, lines: make(chan Event), control: make(chan Event, controls),
		broken: make(chan error, 1), done: make(chan struct{}),
	}
	go m.run()
	return m
}

func (m *mux) run() {
	defer close(m.done)
	var failed bool
	check := func(err error) {
		if err != nil && !failed {
			failed = true
			m.broken <- err
		}
	}
	put := func(e Event) {
		if !failed {
			check(m.sink.Put(e))
		}
	}
	for {
		select {
		case e := <-m.lines:
			put(e)
			continue
		case e, ok := <-m.control:
			if !ok {
				check(m.sink.Flush())
				return
			}
			put(e)
			continue
		default:
		}
		// No line is waiting: show the partial ones, then sleep.
		if !failed {
			check(m.sink.Flush())
		}
		select {
		case e := <-m.lines:
			put(e)
		case e, ok := <-m.control:
			if !ok {
				return
			}
			put(e)
		}
	}
}

// say queues one of the loop's own events.
func (m *mux) say(e Event) {
	e.Time = time.Now()
	m.control <- e
}

// line hands over a rank's line.
func (m *mux) line(rank int, stream, text string) {
	m.lines <- Event{Kind: Output, Time: time.Now(), Rank: rank, Stream: stream, Line: text}
}

// close waits for the sink to have everything, but not for ever: the reader of a
// full pipe may be gone to lunch. It returns the sink's first error, unless that was
// taken from broken before.
func (m *mux) close(patience time.Duration) error {
	close(m.control)
	select {
	case <-m.done:
	case <-time.After(patience):
	}
	select {
	case err := <-m.broken:
		return err
	default:
		return nil
	}
}
