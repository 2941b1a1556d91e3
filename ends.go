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
	asked map[int]bool   // the launcher and the kernel were asked about it, once

	foreign bool // the launcher's ranks have other numbers
}

// An error waits for the launcher to notice how a rank has ended: a rank's connection ends before that.
const (
	launcherGrace = 100 * time.Millisecond // for weft run, which says so within milliseconds
	reaperGrace   = 250 * time.Millisecond // for others: torchrun looks every 100 ms
)

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

// endOf is how a rank has ended: the words of weft run, else the kernel's, else what this rank saw of it.
func (c *Comm) endOf(rank int) string {
	c.ends.Lock()
	how, asked := c.ends.how[rank], c.ends.asked[rank]
	c.ends.Unlock()
	if asked {
		return how
	}
	words, ended := "", false // asked without the lock: news of other ranks need it
	if !c.ends.foreign {
		words = bootstrap.Ended(c.rank, c.size, rank, launcherGrace)
	}
	if words == "" && c.mesh != nil {
		words, ended = c.mesh.Exit(rank, reaperGrace)
	}
	c.ends.Lock()
	defer c.ends.Unlock()
	how = c.ends.how[rank]
	switch {
	case c.ends.asked[rank]:
	case words != "":
		how = "its process ended: " + words
	case ended && how != "":
		how += ", exit status not known"
	}
	c.ends.how[rank], c.ends.asked[rank] = how, true
	return how
}

// explain says what is known of a fault beside its cause, and the way on.
func (c *Comm) explain(f channel.Fault) string {
	goOn := fmt.Sprintf("SetMask goes on without rank %d", f.Rank)
	if f.Rank == c.rank || f.Rank < 0 {
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
