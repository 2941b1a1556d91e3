//go:build unix

package weft_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// legion is the part of a process that is many ranks.
type legion struct{ comms []*weft.Comm }

type legionArgs struct {
	ID     string
	Each   int
	Masked []int
}

func (l *legion) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a legionArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		var err error
		l.comms, err = r.JoinMany(a.ID, a.Each, weft.WithDeadline(time.Minute))
		return nil, err
	case "agree":
		return nil, errors.Join(each(l.comms, func(c *weft.Comm) error { // which aborts nothing
			notes, err := c.Operations().GatherNotes(ctx, "agree", fmt.Append(nil, c.Rank()))
			for rank, note := range notes {
				if want := fmt.Sprint(rank); note != nil && string(note) != want || (note == nil) != c.Masked(rank) {
					return fmt.Errorf("rank %d says %q", rank, note)
				}
			}
			return err
		})...)
	case "mask":
		return nil, ranktest.Each(l.comms, func(c *weft.Comm) error { return c.SetMask(ctx, a.Masked...) })
	case "close":
		return nil, ranktest.Close(l.comms)
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

// onHosts gives each process a host's name. On a machine that is slow no host is lost for its silence.
func onHosts(hosts []string, more ...string) func(rank int) []string {
	return func(rank int) []string {
		return append([]string{"WEFT_HEARTBEAT=60s", "WEFT_HOSTID=" + hosts[rank]}, more...)
	}
}

// TestManyRanksOnHosts has 1,024 ranks of eight processes on as many hosts join, gather, leave a host out
// that has died, and go on.
func TestManyRanksOnHosts(t *testing.T) {
	hosts, each := 8, 128
	if testing.Short() {
		each = 8
	}
	join, busy := manyOnHosts(t, hosts, each)
	t.Logf("%d ranks joined in %v and %v of processors", hosts*each, join, busy)
}

func manyOnHosts(t testing.TB, hosts, each int) (join, busy time.Duration) {
	names, all := make([]string, hosts), make([]int, hosts)
	for i := range names {
		names[i], all[i] = fmt.Sprint("host", i), i
	}
	crew := processes.StartWith(t, "legion", hosts, onHosts(names))
	id := crew.ID()
	for _, r := range all {
		busy -= crew.Busy(r)
	}
	start := time.Now()
	crew.Must(all, "join", legionArgs{ID: id, Each: each})
	join = time.Since(start)
	for _, r := range all {
		busy += crew.Busy(r)
	}
	crew.Must(all, "agree", legionArgs{})
	last := hosts - 1
	crew.Kill(last)
	var dead []int
	for r := range each {
		dead = append(dead, last*each+r)
	}
	for process, a := range crew.All(all[:last], "agree", legionArgs{}) {
		if a.Cause != "died" || a.Peer/each != last {
			t.Errorf("process %d after the death of %d: %.200s", process, last, a.Err)
		}
	}
	crew.Must(all[:last], "mask", legionArgs{Masked: dead})
	crew.Must(all[:last], "agree", legionArgs{})
	crew.Must(all[:last], "close", legionArgs{})
	return join, busy
}

// BenchmarkJoinOnHosts joins 1,024 ranks of eight processes on as many hosts.
func BenchmarkJoinOnHosts(b *testing.B) {
	var join, busy time.Duration
	for b.Loop() {
		j, p := manyOnHosts(b, 8, 128)
		join, busy = join+j, busy+p
	}
	b.ReportMetric(join.Seconds()/float64(b.N), "s/join")
	b.ReportMetric(busy.Seconds()/float64(b.N), "cpu-s/join")
}

// startOnHosts starts a process for each of the hosts' names, which join.
func startOnHosts(t *testing.T, hosts []string, deadline time.Duration, env ...string) (*processes.Crew, []int) {
	t.Helper()
	crew := processes.StartWith(t, "member", len(hosts), onHosts(hosts, env...))
	var all []int
	for r := range hosts {
		all = append(all, r)
	}
	crew.Must(all, "join", memberArgs{ID: crew.ID(), Deadline: deadline})
	return crew, all
}

// TestHostDies kills a process: one that is alone on its host, and one that is not. The others are told
// within a second, and go on.
func TestHostDies(t *testing.T) {
	for victim, hosts := range [][]string{{"a", "b", "c"}, {"a", "a", "b"}, {"a", "b", "b", "c"}} {
		t.Run(fmt.Sprint(victim, " of ", hosts), func(t *testing.T) {
			crew, all := startOnHosts(t, hosts, 0)
			crew.Must(all, "agree", memberArgs{Times: 20})
			rest := slices.DeleteFunc(slices.Clone(all), func(r int) bool { return r == victim })
			for _, r := range rest {
				crew.Tell(r, "agree", memberArgs{})
			}
			crew.Kill(victim)
			killed := time.Now()
			for r, a := range crew.Answers(rest) {
				if a.Peer != victim || a.Cause != "died" {
					t.Errorf("rank %d after the death of %d: %q", r, victim, a.Err)
				}
			}
			t.Logf("told after %v", time.Since(killed))
			crew.Must(rest, "mask", memberArgs{Masked: []int{victim}})
			crew.Must(rest, "agree", memberArgs{Times: 20})
			crew.Must(rest, "close", memberArgs{})
		})
	}
}

// TestHostStops stops the only process of a host. The others are told when nothing was heard of the host
// for as long as the heartbeat, and go on. It wakes to find itself left out, and does not go on alone.
func TestHostStops(t *testing.T) {
	for _, victim := range []int{0, 1} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			t.Parallel()
			crew, all := startOnHosts(t, []string{"a", "b", "c"}, 0, "WEFT_HEARTBEAT=3s")
			crew.Must(all, "agree", memberArgs{Times: 20})
			rest := slices.DeleteFunc(slices.Clone(all), func(r int) bool { return r == victim })
			crew.Stop(victim)
			for r, a := range crew.All(rest, "agree", memberArgs{}) {
				if a.Peer != victim || a.Cause != "died" || !strings.Contains(a.Err, "WEFT_HEARTBEAT") {
					t.Errorf("rank %d while %d is stopped: %q", r, victim, a.Err)
				}
			}
			crew.Must(rest, "mask", memberArgs{Masked: []int{victim}})
			crew.Must(rest, "agree", memberArgs{Times: 20})
			crew.Continue(victim)
			if a := crew.Ask(victim, "mask", memberArgs{Masked: rest}); a.Peer != victim || a.Cause != "masked" {
				t.Errorf("the stopped rank goes on alone: %q (%s)", a.Err, a.Cause)
			}
			crew.Must(rest, "agree", memberArgs{Times: 20})
			crew.Must(rest, "close", memberArgs{})
		})
	}
}

// TestHostStopsBriefly stops a process among others of its host past a deadline: it is to blame, and is
// taken back when it has woken.
func TestHostStopsBriefly(t *testing.T) {
	crew, all := startOnHosts(t, []string{"a", "b", "b", "c"}, 700*time.Millisecond)
	const victim = 1
	rest := []int{0, 2, 3}
	crew.Must(all, "agree", memberArgs{Times: 20})
	crew.Stop(victim)
	for r, a := range crew.All(rest, "agree", memberArgs{}) {
		if a.Peer != victim || a.Cause != "timeout" {
			t.Errorf("rank %d while %d is stopped: %q", r, victim, a.Err)
		}
	}
	crew.Must(rest, "mask", memberArgs{Masked: []int{victim}})
	crew.Must(rest, "agree", memberArgs{Times: 20})
	crew.Continue(victim)
	for r, a := range crew.All(all, "mask", memberArgs{}) {
		if a.Err != "" {
			t.Errorf("rank %d takes it back: %s", r, a.Err)
		}
	}
	crew.Must(all, "agree", memberArgs{Times: 20})
	crew.Must(all, "close", memberArgs{})
}

// TestHostsAmongStrangers has strangers connect to every port that the ranks listen on, and say nothing, or
// what ranks would not say. They disturb nothing.
func TestHostsAmongStrangers(t *testing.T) {
	crew, all := startOnHosts(t, []string{"a", "b", "c"}, 0)
	var visited int
	for _, r := range all {
		for _, door := range crew.Listening(r) {
			for _, word := range []string{
				"", "GET / HTTP/1.1\r\n\r\n", "WEFT\x01\x05\x00\x00\x00\x00\x00\x00", strings.Repeat("x", 4096),
			} {
				conn, err := net.Dial("tcp", door.String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_, err = conn.Write([]byte(word))
				if err != nil && !errors.Is(err, net.ErrClosed) {
					t.Logf("a stranger was turned away: %v", err)
				}
				visited++
			}
		}
	}
	if visited < 12 {
		t.Errorf("strangers have found %d doors", visited/4)
	}
	crew.Must(all, "agree", memberArgs{Times: 200})
	crew.Must(all, "mask", memberArgs{})
	crew.Must(all, "close", memberArgs{})
}
