package control

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// Config is what a rank's side of the control plane is made with.
type Config struct {
	Rank, Size int
	InProcess  int // ranks of this process, this one included
	Policy     channel.Policy
	Timeout    time.Duration
	// Fault and Blame are the Waiter's: what a fault means to the rank, and what it does with one
	// that a wait of its own ended with.
	Fault func(op string) error
	Blame func(f channel.Fault)
	// Explain and Report are the Waiter's, too: what is known of a fault, and long waits.
	Explain func(f channel.Fault) string
	Report  func(op string, peer int, waited time.Duration)
	// RefusedAs is what errors of calls wrap that another rank has refused.
	RefusedAs error
	Logger    *slog.Logger
}

// Rank is one rank's side of the control plane. Its methods may be called by several goroutines.
type Rank struct {
	Waiter channel.Waiter // of this rank, for its peers

	rank, size, inProcess int

	own       *page
	views     []*page // by rank; nil where there is none
	transport Transport
	refused   error
	logger    *slog.Logger

	mask       atomic.Pointer[rankset.Set] // ranks that are left out
	died       rankset.Shared
	left       rankset.Shared
	generation atomic.Uint64 // advances with every SetMask

	gather struct {
		sync.Mutex
		rounds channel.Sequence
	}
}

var errRefused = errors.New("refused")

// New makes the side of a rank that reaches no other yet. Its page lies at the beginning of memory
// that is zero.
func New(cfg Config, own []byte) *Rank {
	r := &Rank{
		rank: cfg.Rank, size: cfg.Size, inProcess: cfg.InProcess,
		own: pageAt(own), views: make([]*page, cfg.Size), logger: cfg.Logger,
		refused: cmp.Or(cfg.RefusedAs, errRefused),
	}
	r.Waiter = channel.Waiter{
		Policy: cfg.Policy, Rank: cfg.Rank, Own: &r.own.fault, Peers: make([]*channel.Status, cfg.Size),
		Timeout: cfg.Timeout, Fault: cfg.Fault, Gone: r.Left, Blame: cfg.Blame,
		Explain: cfg.Explain, Report: cfg.Report,
	}
	r.mask.Store(&rankset.Set{})
	alone := make([][]byte, cfg.Size)
	alone[cfg.Rank] = own
	r.Connect(alone, Shared(alone))
	return r
}

// Connect gives the rank views of its peers' pages, nil where it has none, and what carries its
// writes to them. Nothing waits yet.
func (r *Rank) Connect(views [][]byte, t Transport) {
	for p, mem := range views {
		if mem != nil {
			r.views[p] = pageAt(mem)
			r.Waiter.Peers[p] = &r.views[p].fault.Status
		}
	}
	r.transport = t
}

// Generation is 0 at first and grows with every SetMask, to the same number on all unmasked ranks.
func (r *Rank) Generation() uint64 { return r.generation.Load() }

// Masked reports whether a rank is left out.
func (r *Rank) Masked(rank int) bool { return rankset.Holds(r.mask.Load(), rank) }

// Mask is the set of ranks that are left out.
func (r *Rank) Mask() rankset.Set { return *r.mask.Load() }

// MaskPointer is where that set lies. A SetMask puts another one in its place and changes none.
func (r *Rank) MaskPointer() *rankset.Set { return r.mask.Load() }

// Died reports whether a peer has died.
func (r *Rank) Died(peer int) bool { return r.died.Has(peer) }

// Left reports whether a peer has left in good order.
func (r *Rank) Left(peer int) bool { return r.left.Has(peer) }

// everyone is the set of all ranks.
func (r *Rank) everyone() rankset.Set { return rankset.Below(r.size) }
