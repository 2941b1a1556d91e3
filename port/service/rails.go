package service

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/port"
)

// rails are what services move bytes by: a domain for each, and a proxy over them.
//
// Services with [Options].Shared have one in common, with the signals of each behind those of the one before. It is
// opened by the first and closed by the last. What has failed must land nowhere any more, and only a domain that is
// closed sees to that: so it is closed for all by the first service that leaves with something underway, or after a
// SetMask, which each of them is opened anew for.
type rails struct {
	comm       *weft.Comm
	domains    []*fabric.Domain
	proxy      *port.Proxy
	cards      [][]byte // of the proxies, by rank
	unhook     func()   // takes back that SetMask renews keys; nil: it does not
	generation uint64
	serial     uint64 // the same on all ranks, and of no other rails; 0: of one service alone

	// Under the lock of shared.
	users    int
	next     int // signal that is free
	channels int // that were made, at most
	closed   bool
	ended    chan struct{} // is closed when all is
}

// sharedSignals is how many a domain has that several services use.
const sharedSignals = 4096

// mostChannels is how many a proxy has in all its time.
const mostChannels = 1 << 16

// shared are the rails that the next service of a communicator may take part in.
var shared = struct {
	sync.Mutex
	rails map[*weft.Comm]*rails
}{rails: map[*weft.Comm]*rails{}}

// offered is what the service may take part in, as far as this rank knows, or nil. It is held until it is left.
func (s *Service) offered() *rails {
	shared.Lock()
	defer shared.Unlock()
	r := shared.rails[s.comm]
	if r == nil || r.generation != s.ops.Generation() || r.channels+s.mostLinks() > mostChannels {
		return nil
	}
	r.users++
	return r
}

// mostLinks is how many channels the service may make.
func (s *Service) mostLinks() int { return (s.options.Channels + 1) * s.comm.Size() }

// join takes part in the rails of others, if all ranks can. Else it tells which serial the rails have that the ranks
// open instead. It is collective.
func (s *Service) join(ctx context.Context, op string) (r *rails, serial uint64, err error) {
	const fields = 3 * 8
	r = s.offered()
	note := make([]byte, fields)
	if r != nil {
		shared.Lock()
		binary.LittleEndian.PutUint64(note, r.serial)
		binary.LittleEndian.PutUint64(note[8:], uint64(r.next))
		shared.Unlock()
	}
	binary.LittleEndian.PutUint64(note[16:], rand.Uint64()|1)
	notes, err := s.ops.GatherNotes(ctx, op, note)
	same, first := r != nil, 0
	for _, n := range notes {
		if len(n) != fields { // of a rank that is masked
			continue
		}
		same = same && binary.LittleEndian.Uint64(n) == r.serial
		first = max(first, int(binary.LittleEndian.Uint64(n[8:])))
		if serial == 0 {
			serial = binary.LittleEndian.Uint64(n[16:])
		}
	}
	if err == nil && same && first+s.options.Channels+1 <= sharedSignals {
		shared.Lock()
		defer shared.Unlock()
		s.first, r.next = first, first+s.options.Channels+1
		r.channels += s.mostLinks()
		return r, r.serial, nil
	}
	if r != nil {
		err = errors.Join(err, r.leave(true))
	}
	return nil, serial, err
}

// openFabric takes part in rails, or opens them and tells the others of them. Where one rank has no fabric none has.
func (s *Service) openFabric(ctx context.Context, op string) error {
	serial := uint64(0)
	if s.options.Shared {
		var err error
		if s.rails, serial, err = s.join(ctx, op); s.rails != nil || err != nil {
			return err
		}
	}
	r := &rails{
		comm: s.comm, generation: s.ops.Generation(), serial: serial, users: 1, next: s.options.Channels + 1,
		channels: s.mostLinks(), ended: make(chan struct{}),
	}
	s.rails = r
	why := s.openRails(watched{ctx, s, op, -1}, r)
	note := []byte{1}
	if why != nil {
		text := why.Error()
		note = append([]byte{0}, text[:min(len(text), pieceSize)]...)
	}
	notes, err := s.ops.GatherNotes(ctx, op, note)
	if err != nil {
		return err
	}
	for rank, n := range notes {
		if len(n) > 0 && n[0] == 0 {
			s.absent = &weft.PeerError{Rank: rank, Op: op, Err: fmt.Errorf("%w there: %s", weft.ErrUnsupported, n[1:])}
			return s.closeFabric(true)
		}
	}
	if r.unhook, err = s.ops.Renews(ctx, op, r.proxy); err != nil {
		return err
	}
	r.cards = make([][]byte, s.comm.Size())
	card := r.proxy.Card()
	for range s.options.Sources { // a rail's card fits into a piece
		piece := card[:min(len(card), pieceSize)]
		card = card[len(piece):]
		notes, err := s.ops.GatherNotes(ctx, op, piece)
		if err != nil {
			return err
		}
		for rank, n := range notes {
			r.cards[rank] = append(r.cards[rank], n...)
		}
	}
	if serial != 0 {
		shared.Lock()
		shared.rails[s.comm] = r
		shared.Unlock()
	}
	return nil
}

// pieceSize is what a note carries of more.
const pieceSize = 1000

func (s *Service) openRails(ctx context.Context, r *rails) error {
	signals := s.options.Channels + 1
	if r.serial != 0 {
		signals = max(signals, sharedSignals)
	}
	for rail := range s.options.Sources {
		d, err := s.options.Open(ctx, rail, fabric.Options{
			Rank: s.comm.Rank(), Size: s.comm.Size(), Signals: signals, Timeout: s.comm.Deadline(), Spin: s.options.Spin,
		})
		if err != nil {
			return err
		}
		r.domains = append(r.domains, d)
	}
	x, err := port.New(port.Options{
		Depth: s.options.Depth, Timeout: s.comm.Deadline(), Spin: s.options.Spin, Spread: s.options.Spread,
	}, r.domains...)
	r.proxy = x
	return err
}

// leave closes the rails if nobody else has them, or if the others must not go on by them. If another one is closing
// them it waits for that: what the caller has registered is the caller's again.
func (r *rails) leave(others bool) error {
	shared.Lock()
	r.users--
	closed := r.closed
	last := !closed && (r.users == 0 || !others)
	if last {
		r.closed = true
		if shared.rails[r.comm] == r {
			delete(shared.rails, r.comm)
		}
	}
	shared.Unlock()
	if closed {
		<-r.ended
	}
	if !last {
		return nil
	}
	defer close(r.ended)
	if r.unhook != nil {
		r.unhook()
	}
	var errs []error
	if r.proxy != nil {
		errs = append(errs, r.proxy.Close())
	}
	for _, d := range r.domains {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
