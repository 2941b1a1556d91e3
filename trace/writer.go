package trace

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Extension ends the names of files.
const Extension = ".weft-trace"

const (
	flushEvery  = 200 * time.Millisecond
	anchorEvery = time.Second
	// soonBytes wake the goroutine that writes. From mostBytes on events are dropped.
	soonBytes = 256 << 10
	mostBytes = 16 << 20
	// chunkBytes end a record of events.
	chunkBytes = 1 << 20
)

// Writer writes the file of a rank. Its methods may be called from any goroutine.
//
// A Writer is of one communicator. Communicators that are made of it share the file, by [Writer.Within].
type Writer struct {
	sink *sink
	comm string
	rank int
	size int
	once sync.Once
	err  error // of Close
}

// sink is the file that Writers share.
type sink struct {
	path string
	file *os.File
	wake chan struct{} // has a token where there is something to write soon
	done chan struct{} // closed when the last Writer is
	gone chan struct{} // closed when run has returned

	mu     sync.Mutex
	users  int
	ready  []byte // whole records
	tracks []*pending
	size   int // bytes of events in tracks
	armed  bool
	closed bool

	writing sync.Mutex // of the file; taken before mu
	err     error      // the first one
	spare   []byte
	read    time.Time // the host's clock, beside the time of day
}

// pending are events of a track that no record has yet.
type pending struct {
	ops  []string
	b    []byte
	n    uint64
	last Event
	lost uint64 // events

	overwritten uint64 // operations
}

// Create makes the file of a rank in a directory, which it makes if need be. It overwrites nothing: where there is a
// file of the rank's, from another communicator of the job, say, the new one has a number more in its name. The file is
// the caller's user's alone to read.
func Create(dir string, h Header) (*Writer, error) {
	if h.Rank < 0 || h.Size < 1 || h.Rank >= h.Size {
		return nil, fmt.Errorf("trace: rank %d of %d", h.Rank, h.Size)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	file, err := createFile(dir, h.Rank)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	s := &sink{
		path: file.Name(), file: file, users: 1,
		wake: make(chan struct{}, 1), done: make(chan struct{}), gone: make(chan struct{}),
	}
	s.ready = appendFrame([]byte(magic), kindHeader, func(b []byte) []byte { return appendJSON(b, h) })
	if err := s.flush(); err != nil {
		return nil, errors.Join(fmt.Errorf("trace: %w", err), file.Close())
	}
	go s.run()
	return &Writer{sink: s, comm: h.Comm, rank: h.Rank, size: h.Size}, nil
}

// mostFiles is how many files of one rank a directory takes.
const mostFiles = 10000

func createFile(dir string, rank int) (*os.File, error) {
	for n := 1; ; n++ {
		name := fmt.Sprintf("rank-%d%s", rank, Extension)
		if n > 1 {
			name = fmt.Sprintf("rank-%d.%d%s", rank, n, Extension)
		}
		file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil || !errors.Is(err, fs.ErrExist) || n == mostFiles {
			return file, err
		}
	}
}

// Path is where the file is.
func (w *Writer) Path() string { return w.sink.path }

// Within is the Writer of a communicator of some ranks of the job, in which this one has another number. Its name is
// the same on its ranks, and no other's. Tracks that are made by it have this name: lanes of different communicators
// are told apart. Each Writer is closed; the file is when all are.
func (w *Writer) Within(comm string, rank, size int) *Writer {
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	w.sink.users++
	return &Writer{sink: w.sink, comm: comm, rank: rank, size: size}
}

// Track makes a track.
func (w *Writer) Track(t Track) (id uint32) {
	s := w.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	id = uint32(len(s.tracks))
	t.Ops = slices.Clone(t.Ops)
	s.tracks = append(s.tracks, &pending{ops: t.Ops})
	r := trackRecord{ID: id, Comm: w.comm, Rank: w.rank, Size: w.size, Track: t}
	s.ready = appendFrame(s.ready, kindTrack, func(b []byte) []byte { return appendJSON(b, r) })
	s.arm()
	return id
}

// Op is the index of an operation's name in a track's Ops, which it adds if need be.
func (w *Writer) Op(track uint32, name string) uint32 {
	s := w.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.tracks[track]
	if i := slices.Index(p.ops, name); i >= 0 {
		return uint32(i)
	}
	p.ops = append(p.ops, name)
	s.ready = appendFrame(s.ready, kindOps, func(b []byte) []byte {
		return append(binary.AppendUvarint(b, uint64(track)), name...)
	})
	s.arm()
	return uint32(len(p.ops) - 1)
}

// Events adds events to a track. Those of one block are in the order of their times.
func (w *Writer) Events(track uint32, events []Event) {
	if len(events) == 0 {
		return
	}
	s := w.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.tracks[track]
	if s.closed || len(s.ready)+s.size > mostBytes {
		p.lost += uint64(len(events))
		s.arm()
		return
	}
	before := len(p.b)
	for i := range events {
		p.b = appendEvent(p.b, &events[i], &p.last)
		p.last = events[i]
		p.n++
	}
	s.size += len(p.b) - before
	if len(p.b) > chunkBytes {
		s.seal(uint32(track), p)
	}
	s.arm()
	if len(s.ready)+s.size > soonBytes {
		s.kick()
	}
}

// Overwritten says that so many operations of a track are not there: their events were in a ring, and were overwritten
// before they were read.
func (w *Writer) Overwritten(track uint32, operations uint64) {
	s := w.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracks[track].overwritten += operations
	s.arm()
}

// Anchor gives a reading of a clock beside CLOCK_REALTIME in nanoseconds, and a bound of the error: the clock showed
// own at some time between unix-within and unix+within.
func (w *Writer) Anchor(clock string, own uint64, unix int64, within uint64) {
	s := w.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	s.anchor(clock, own, unix, within)
	s.arm()
}

func (s *sink) anchor(clock string, own uint64, unix int64, within uint64) {
	s.ready = appendFrame(s.ready, kindAnchor, func(b []byte) []byte {
		b = binary.AppendUvarint(b, own)
		b = binary.AppendUvarint(b, zigzag(unix))
		b = binary.AppendUvarint(b, within)
		return append(b, clock...)
	})
}

// Flush writes all that the Writer has been given: what comes before a failure is then in the file.
func (w *Writer) Flush() error {
	if err := w.sink.flush(); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

// Close closes the Writer, and the file with the last one. Its error is the first that writing met: the file ends
// there.
func (w *Writer) Close() error {
	w.once.Do(func() { w.err = w.sink.leave() })
	return w.err
}

func (s *sink) leave() error {
	s.mu.Lock()
	s.users--
	last := s.users == 0
	s.mu.Unlock()
	if !last {
		if err := s.flush(); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
		return nil
	}
	close(s.done)
	<-s.gone
	own, unix, within := reading()
	s.mu.Lock()
	s.anchor(ClockHost, own, unix, within)
	s.closed = true
	s.mu.Unlock()
	err := s.flush()
	if err == nil {
		_, err = s.file.Write(appendFrame(nil, kindEnd, func(b []byte) []byte { return b }))
	}
	if err = cmp.Or(err, s.file.Close()); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

// arm sees to it that what there is gets written. The caller holds mu.
func (s *sink) arm() {
	if !s.armed {
		s.armed = true
		s.kick()
	}
}

// kick wakes run. The first token of a batch begins the wait, another one ends it.
func (s *sink) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// seal makes a record of a track's events. The caller holds mu.
func (s *sink) seal(id uint32, p *pending) {
	if p.n > 0 {
		s.ready = appendFrame(s.ready, kindEvents, func(b []byte) []byte {
			return append(binary.AppendUvarint(binary.AppendUvarint(b, uint64(id)), p.n), p.b...)
		})
		s.size -= len(p.b)
		p.b, p.n, p.last = p.b[:0], 0, Event{}
	}
	count := func(kind byte, n *uint64) {
		if *n > 0 {
			s.ready = appendFrame(s.ready, kind, func(b []byte) []byte {
				return binary.AppendUvarint(binary.AppendUvarint(b, uint64(id)), *n)
			})
			*n = 0
		}
	}
	count(kindLost, &p.lost)
	count(kindOverwritten, &p.overwritten)
}

// flush writes what there is.
func (s *sink) flush() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	now := time.Now()
	s.mu.Lock()
	if now.Sub(s.read) >= anchorEvery {
		s.read = now
		own, unix, within := reading()
		s.anchor(ClockHost, own, unix, within)
	}
	for id, p := range s.tracks {
		s.seal(uint32(id), p)
	}
	b := s.ready
	s.ready, s.spare = s.spare[:0], nil
	s.armed = false
	s.mu.Unlock()
	if s.err == nil && len(b) > 0 {
		_, s.err = s.file.Write(b)
	}
	if cap(b) <= 4*soonBytes {
		s.spare = b
	}
	return s.err
}

// run writes what comes in batches, until the last Writer is closed.
func (s *sink) run() {
	defer close(s.gone)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.wake:
		case <-s.done:
			return
		}
		timer.Reset(flushEvery)
		select {
		case <-s.wake: // there is much
		case <-timer.C:
		case <-s.done:
			return
		}
		_ = s.flush() // Close says what went wrong
	}
}
