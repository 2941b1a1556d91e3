package softnic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/weftgo/weft/fabric/mlx5"
)

// Options say what the card does of all that it may do. The zero value does all at once, in order.
type Options struct {
	// Seed decides what hardware leaves open. 0: nothing is left open.
	Seed uint64
	// Relaxed lets a write land behind later writes of its queue. Flags then overtake data.
	Relaxed bool
	// Early lets a completion come before the bytes have landed, but not before they were read.
	Early bool
}

// Access is what peers may do to a region.
type Access uint8

// Permissions.
const (
	RemoteWrite  Access = 1 << 0
	RemoteAtomic Access = 1 << 1
)

// Region is memory that entries name by a key.
type Region struct {
	Key     uint32
	Address uint64 // of its first byte, as entries name it
	Bytes   []byte
	Access  Access
}

// NIC is a card. It is safe for concurrent use, and does its work in Step.
type NIC struct {
	options Options

	mu         sync.Mutex
	random     *rand.Rand // nil without a seed
	regions    map[uint32]Region
	queues     []*Queue
	violations []error
}

// New makes a card without regions and queues.
func New(o Options) *NIC {
	n := &NIC{options: o, regions: map[uint32]Region{}}
	if o.Seed != 0 {
		n.random = rand.New(rand.NewPCG(o.Seed, 1))
	}
	return n
}

// Register adds a region. The memory stays where it is until Deregister.
func (n *NIC) Register(r Region) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, taken := n.regions[r.Key]; taken {
		return invalid("key %#x has a region", r.Key)
	}
	if len(r.Bytes) == 0 || r.Address+uint64(len(r.Bytes)) < r.Address {
		return invalid("a region of %d bytes at %#x", len(r.Bytes), r.Address)
	}
	n.regions[r.Key] = r
	return nil
}

// Deregister takes a region out. Entries that name it fail from now on. Writes that are underway end first.
func (n *NIC) Deregister(key uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, q := range n.queues {
		q.landAll()
	}
	delete(n.regions, key)
}

// Disconnect takes a queue pair out, whose memory may then be freed. Writes that are underway end first; entries that
// have not begun never do.
func (n *NIC) Disconnect(q *Queue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	q.landAll()
	n.queues = slices.DeleteFunc(n.queues, func(o *Queue) bool { return o == q })
}

// Connect makes a queue pair with a number of 24 bits, which no other one has. It formats the memory.
func (n *NIC) Connect(number uint32, m Memory) (*Queue, error) {
	if number == 0 || number > mlx5.QueueMask {
		return nil, invalid("queue pair %#x; want 1 to %#x", number, mlx5.QueueMask)
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.ContainsFunc(n.queues, func(q *Queue) bool { return q.number == number }) {
		return nil, invalid("queue pair %#x exists", number)
	}
	m.Format()
	q := newQueue(n, number, m)
	n.queues = append(n.queues, q)
	return q, nil
}

// Step lets every queue do something, and reports whether one did.
func (n *NIC) Step() (some bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.random != nil {
		n.random.Shuffle(len(n.queues), func(i, j int) { n.queues[i], n.queues[j] = n.queues[j], n.queues[i] })
	}
	for _, q := range n.queues {
		some = q.step() || some
	}
	return some
}

// Serve steps until the context ends. It sleeps for some microseconds while there is nothing to do.
func (n *NIC) Serve(ctx context.Context) {
	for idle := 0; ctx.Err() == nil; {
		if n.Step() {
			idle = 0
			continue
		}
		if idle++; idle < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// Check lists the mistakes of the queues' writers so far.
func (n *NIC) Check() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.violations...)
}

// violation notes a mistake, and stops the queue.
func (n *NIC) violation(q *Queue, format string, args ...any) {
	q.halted = true
	n.violations = append(n.violations, fmt.Errorf("softnic: queue pair %#x, entry %d: %s", q.number, q.executed,
		fmt.Sprintf(format, args...)))
}

// find is registered memory. It is nil where key, bounds or permission are missing.
func (n *NIC) find(r mlx5.Range, length uint64, access Access) []byte {
	g, ok := n.regions[r.Key]
	size := uint64(len(g.Bytes))
	if !ok || g.Access&access != access || r.Address < g.Address || length > size || r.Address-g.Address > size-length {
		return nil
	}
	return g.Bytes[r.Address-g.Address:][:length:length]
}

// chance is true once in so many times, and never without a seed.
func (n *NIC) chance(of int) bool { return n.random != nil && n.random.IntN(of) == 0 }
