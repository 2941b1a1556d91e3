package collective

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// TestHostRankDies kills a process in the midst of operations between hosts, on libfabric: the others return an error
// that names it, mask it, and go on with right results.
func TestHostRankDies(t *testing.T) {
	needLibfabric(t)
	for i, tc := range []struct {
		hosts  string
		victim int
	}{{"aabb", 3}, {"aabb", 0}, {"abc", 1}, {"aab", 2}} {
		for k, name := range []string{
			"all-reduce/hierarchical", "all-to-all/pipeline", "reduce-scatter/hierarchical", "all-gather/eager", "",
		} {
			if os.Getenv("WEFT_TEST_ALL") == "" && k%4 != i {
				continue // each operation once
			}
			what := name
			if name == "" {
				what = "messages"
			}
			t.Run(fmt.Sprintf("%s, rank %d of %s", what, tc.victim, tc.hosts), func(t *testing.T) {
				n := len(tc.hosts)
				crew := processes.StartWith(t, "member", n, func(rank int) []string {
					return []string{"WEFT_HEARTBEAT=60s", "WEFT_HOSTID=" + tc.hosts[rank:][:1]}
				})
				all := ranksUpTo(n)
				args := memberArgs{ID: crew.ID(), Deadline: time.Minute, Algorithm: name, Bytes: 64 << 10}
				if name == "all-gather/eager" {
					args.Bytes = 1 << 10
				}
				crew.Must(all, "join", args)
				crew.Must(all, "repeat", memberArgs{Times: 3})
				rest := slices.DeleteFunc(slices.Clone(all), func(r int) bool { return r == tc.victim })
				for _, r := range all {
					crew.Tell(r, "repeat", memberArgs{Times: 1_000_000})
				}
				time.Sleep(50 * time.Millisecond)
				crew.Kill(tc.victim)
				killed := time.Now()
				for r, a := range crew.Answers(rest) {
					if a.Peer != tc.victim || a.Cause != "died" {
						t.Errorf("rank %d after the death of %d: %.300s", r, tc.victim, a.Err)
					}
				}
				t.Log("told after", time.Since(killed))
				crew.Must(rest, "mask", memberArgs{Masked: []int{tc.victim}})
				crew.Must(rest, "repeat", memberArgs{Times: 3})
			})
		}
	}
}

// TestStrangersAtPorts has strangers connect to every port of the ranks, the fabric's too, and say nothing, or what no
// rank would, in the midst of operations. Others speak as libfabric does, and guess keys. They disturb nothing.
func TestStrangersAtPorts(t *testing.T) {
	needLibfabric(t)
	d := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1})
	provider := d.Capabilities().Provider
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	const hosts = "aab"
	crew := processes.StartWith(t, "member", len(hosts), func(rank int) []string {
		return []string{"WEFT_HOSTID=" + hosts[rank:][:1]}
	})
	all := ranksUpTo(len(hosts))
	crew.Must(all, "meet", memberArgs{ID: crew.ID(), Deadline: time.Minute})
	before := crew.Listening(farRank)
	crew.Must(all, "group", memberArgs{Algorithm: "all-reduce/hierarchical", Bytes: 64 << 10})
	fabrics := slices.DeleteFunc(crew.Listening(farRank), func(door netip.AddrPort) bool {
		return slices.Contains(before, door) || !door.Addr().Is4()
	})
	if len(fabrics) == 0 {
		t.Fatalf("rank %d listens on %v without a fabric, and on no port more with one", farRank, before)
	}
	for _, r := range all {
		crew.Tell(r, "repeat", memberArgs{Times: 100})
	}
	for _, r := range all {
		for _, door := range crew.Listening(r) {
			for _, word := range []string{
				"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\x00", 512), strings.Repeat("\x01", 64), strings.Repeat("\xff", 4096),
			} {
				conn, err := net.Dial("tcp", door.String())
				if err != nil {
					t.Fatalf("rank %d turns strangers away: %v", r, err)
				}
				defer conn.Close()
				_, _ = conn.Write([]byte(word)) // it may be turned away meanwhile
			}
		}
	}
	for r, a := range crew.Answers(all) {
		if a.Err != "" {
			t.Errorf("rank %d: %s", r, a.Err)
		}
	}
	for _, door := range fabrics {
		for _, r := range all {
			crew.Tell(r, "repeat", memberArgs{Times: 100})
		}
		if landed := (fabrictest.Stranger{Provider: provider, Port: door}).Guess(t.Context()); len(landed) > 0 {
			t.Errorf("a stranger's writes to %v landed, by the keys %x", door, landed)
		}
		for r, a := range crew.Answers(all) {
			if a.Err != "" {
				t.Errorf("rank %d, while a stranger guesses keys at %v: %s", r, door, a.Err)
			}
		}
	}
	crew.Must(all, "repeat", memberArgs{Times: 100})
}
