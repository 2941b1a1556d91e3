package weft

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/shm"
)

// ends are how ranks have ended, in words, as far as this rank knows.
type ends struct {
	sync.Mutex
	how   map[int]string // by rank
	asked map[int]bool   // the launcher was asked about it, once

	foreign bool // the launcher's ranks have other numbers
}

// launcherGrace is how long an error waits for the launcher to say how a rank has ended. A rank's
// connection ends a few milliseconds before the launcher knows.
const launcherGrace = 100 * time.Millisecond

// noteEnd keeps how a peer ended.
func (c *Comm) noteEnd(peer int, err error) {
	if err == nil {
		return
	}
	c.ends.Lock()
	defer c.ends.Unlock()
	if c.ends.how[peer] == "" {
		c.ends.how[peer] = trimCause(err, shm.ErrDied)
		if errors.Is(err, ErrDied) {
			c.ends.how[peer] = trimCause(err, ErrDied)
		}
	}
}

// endOf is how a rank has ended: the launcher's words, else what this rank saw of it.
func (c *Comm) endOf(rank int) string {
	c.ends.Lock()
	defer c.ends.Unlock()
	if !c.ends.asked[rank] && !c.ends.foreign {
		c.ends.asked[rank] = true
		if how := bootstrap.Ended(c.rank, c.size, rank, launcherGrace); how != "" {
			c.ends.how[rank] = "its process ended: " + how
		}
	}
	return c.ends.how[rank]
}

// explain says what is known of a fault beside its cause, and the way on.
func (c *Comm) explain(f channel.Fault) string {
	goOn := fmt.Sprintf("SetMask goes on without rank %d", f.Rank)
	if f.Rank == c.rank {
		goOn = "SetMask goes on"
	}
	switch f.Cause {
	case channel.CauseTimeout:
		return fmt.Sprintf("rank %d waited %s, which WithDeadline sets; %s", f.Reporter,
			bootstrap.Seconds(c.control.Waiter.Timeout), goOn)
	case channel.CauseDied:
		if how := c.endOf(f.Rank); how != "" {
			return how + "; " + goOn
		}
		return goOn
	case channel.CauseLeft:
		return "it closed its communicator; " + goOn
	case channel.CauseAbort:
		return "its call was cancelled or interrupted, it called Abort, or it met an error of its own; SetMask goes on"
	case channel.CauseMismatch:
		return fmt.Sprintf("its call and rank %d's are different ones; SetMask goes on", f.Rank)
	case channel.CauseMasked:
		return "the others go on without it, until they call SetMask with it"
	}
	return ""
}

// processOf is a rank's process, or 0 where this rank cannot know it.
func (c *Comm) processOf(rank int) int {
	if rank < 0 || rank >= len(c.processes) {
		return 0
	}
	return c.processes[rank]
}
