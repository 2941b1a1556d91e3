package weft

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/internal/relay"
	"github.com/weftgo/weft/internal/shm"
)

// nodes are this process's nodes between hosts: the ranks of a communicator share one.
var nodes = struct {
	sync.Mutex
	made map[nodeName]*relay.Node
}{made: map[nodeName]*relay.Node{}}

// nodeName is of a communicator, and a process of it. Ranks that only play at several hosts are of several.
type nodeName struct {
	sum     [sha256.Size]byte
	process int
}

// doorKeySize is the length of the key that rank 0 draws for the doors of a communicator.
const doorKeySize = 32

// openNode connects this rank's process with those of other hosts, in the background. The lowest rank of each
// process opens a door and makes the node, and tells where the door is; the process's other ranks find it. Launched
// says that the launcher's ranks have the same numbers.
func (c *Comm) openNode(ctx context.Context, r *roster, launched bool) (*relay.Node, error) {
	processes, own := r.processes, r.processOf[c.rank]
	name := nodeName{r.sum, own}
	heartbeat, err := heartbeatOf(os.Getenv(relay.Variable))
	if processes[own].Ranks[0] != c.rank {
		_, err := c.exchangeDoors(ctx, heartbeat, nil, err)
		nodes.Lock()
		n := nodes.made[name]
		nodes.Unlock()
		switch {
		case err != nil && n != nil:
			n.Forsake()
			return nil, err
		case err != nil:
			return nil, err
		case n != nil:
			return n, nil
		}
		return nil, &PeerError{Rank: processes[own].Ranks[0], Op: "join", Err: ErrLeft}
	}

	var data []byte
	door, failed := bootstrap.OpenDoor(c.bootstrap)
	if err == nil {
		err = failed
	}
	if err == nil {
		key := make([]byte, doorKeySize)
		if c.rank == 0 {
			rand.Read(key)
		}
		data = append(key, strings.Join(door.Addresses(), ",")...)
	}
	addresses := make([][]string, len(processes))
	rankOf := func(process int) int { return processes[process].Ranks[0] }
	ended := func(int) string { return "" }
	if launched {
		ended = func(rank int) string { return bootstrap.Ended(c.rank, c.size, rank, 0) }
	}
	node := relay.New(relay.Config{
		Self: own, Processes: processes, Size: c.size, Heartbeat: heartbeat,
		Dial: func(ctx context.Context, p int) (relay.Link, error) {
			l, err := door.Dial(ctx, rankOf(p), addresses[p])
			if err != nil {
				return nil, err
			}
			return l, nil
		},
		Absent: func(ctx context.Context, p int) bool { return door.Absent(ctx, addresses[p]) },
		Ended:  ended,
		Logger: c.logger,
	})
	nodes.Lock()
	nodes.made[name] = node
	nodes.Unlock()
	forget := func() {
		nodes.Lock()
		delete(nodes.made, name)
		nodes.Unlock()
		if door != nil {
			_ = door.Close()
		}
	}
	given, err := c.exchangeDoors(ctx, heartbeat, data, err)
	for p := range processes {
		if err != nil {
			break
		}
		d := given[rankOf(p)]
		if len(d) <= doorKeySize {
			err = &PeerError{Rank: rankOf(p), Op: "join", Err: fmt.Errorf("%w: it tells no address", ErrMismatch)}
			break
		}
		addresses[p] = strings.Split(string(d[doorKeySize:]), ",")
	}
	if err != nil {
		forget()
		return nil, err
	}
	node.OnClose(forget)
	door.Serve(given[0][:doorKeySize], func(l *bootstrap.Link) {
		p := node.ProcessOf(l.Peer())
		if rankOf(p) != l.Peer() {
			l.Cut()
			return
		}
		node.Admit(l, p)
	})
	node.Start()
	return node, nil
}

// exchangeDoors gives what each rank tells of its process's door to all ranks, and compares their
// heartbeats. The error is the same on all ranks, but on one that has an error of its own.
func (c *Comm) exchangeDoors(ctx context.Context, heartbeat time.Duration, data []byte, own error) ([][]byte, error) {
	note := messageOf("heartbeat: "+heartbeat.String(), own)
	if own == nil {
		note = append(append(note, '\n'), data...)
	}
	all, err := c.bootstrap.AllGather(ctx, note)
	if err != nil {
		return nil, &opError{"join", err}
	}
	if own != nil {
		return nil, &opError{"join", own}
	}
	given := make([][]byte, len(all))
	for r, n := range all {
		all[r], given[r], _ = bytes.Cut(n, []byte{'\n'})
	}
	return given, agreed("join", all)
}

// heartbeatOf is the value of the variable that says after how long a silence a host is lost.
func heartbeatOf(value string) (time.Duration, error) {
	if value == "" {
		return relay.DefaultHeartbeat, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 100*time.Millisecond || d > time.Hour {
		return relay.DefaultHeartbeat, Invalidf("%s=%s: it is a time from 100ms to 1h, such as 5s", relay.Variable, value)
	}
	return d, nil
}

// connectHosts gives this rank views of the pages of all ranks: this host's own, and copies of the
// others. It returns when all processes were heard of.
func (c *Comm) connectHosts(ctx context.Context, near [][]byte) error {
	between, err := c.node.Join(c.rank, near, c.hostEvent)
	if err != nil {
		return &PeerError{Rank: c.rank, Op: "join", Err: err}
	}
	c.between = between
	views := make([][]byte, c.size)
	for r := range views {
		if views[r] = near[r]; views[r] == nil {
			views[r] = c.node.View(r)
		}
	}
	c.control.Waiter.Behind, c.control.Waiter.Standstill = between.Behind, time.Second
	c.control.Connect(views, between)
	return c.node.Formed(ctx)
}

// hostEvent handles what becomes of a rank of another host.
func (c *Comm) hostEvent(e relay.Event) {
	switch e.Kind {
	case relay.Left:
		c.control.MarkLeft(e.Rank)
	case relay.Died:
		c.noteEnd(e.Rank, e.Err)
		c.reach.lose(e.Rank, ErrDied)
		c.control.MarkDied(e.Rank, e.Err)
	}
}

// witness tells the other hosts of the end of a process of this one.
func (c *Comm) witness(e shm.Event) {
	if c.node != nil && !c.sameProcess[e.Peer] {
		c.node.Witness(e.Peer, trimCause(e.Err, shm.ErrDied))
	}
}
