package ep_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

func needLibfabric(t *testing.T) {
	if err := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1}).Close(); err != nil {
		t.Error(err)
	}
}

// TestHostProcesses runs a sample of the suite on ranks that are processes of several hosts, by libfabric.
func TestHostProcesses(t *testing.T) {
	needLibfabric(t)
	every := 9
	if os.Getenv("WEFT_TEST_ALL") != "" {
		every = 1
	}
	for _, hosts := range []string{"ab", "aabb"} {
		t.Run(hosts, func(t *testing.T) {
			conform(t, processes.StartWith(t, "conformance", len(hosts), onHost(hosts)), exchangeArgs{Every: every})
		})
	}
}

// TestHostProcessesOnGPUs is TestHostProcesses of ranks on GPUs: emulated ones, and those of this machine.
func TestHostProcessesOnGPUs(t *testing.T) {
	needLibfabric(t)
	run := func(t *testing.T, args exchangeArgs) {
		for _, hosts := range []string{"ab", "aabb"} {
			t.Run(hosts, func(t *testing.T) {
				conform(t, processes.StartWith(t, "gpu", len(hosts), onHost(hosts)), args)
			})
		}
	}
	t.Run("emulated", func(t *testing.T) {
		emulate.Need(t)
		if !emulate.Everything() {
			t.Skip("run by make test-all: WEFT_TEST_ALL=1")
		}
		run(t, exchangeArgs{GPUs: processes.GPUs{Emulated: true, Dir: t.TempDir()}, Every: 200})
	})
	t.Run("real", func(t *testing.T) {
		ranktest.Real(t)
		run(t, exchangeArgs{Every: 5})
	})
}

// TestHostKill kills ranks of several hosts in operations, one of them with its whole host. The others say which
// one, leave it out, and go on with right results.
func TestHostKill(t *testing.T) {
	needLibfabric(t)
	turn := 0
	for _, op := range operations {
		for _, phase := range phases(op) {
			for _, tc := range []struct {
				hosts   string
				victims []int
			}{{"aabb", []int{2, 3}}, {"aabb", []int{0, 3}}, {"aaab", []int{3}}, {"abcc", []int{1}}} {
				turn++
				if os.Getenv("WEFT_TEST_ALL") == "" && turn%5 != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%v of %s", op, phase, tc.victims, tc.hosts), func(t *testing.T) {
					killOneByOne(t, op, phase, tc.victims, tc.hosts)
				})
			}
		}
	}
}

// TestHostStop stops a rank of another host in an operation. The others leave it out at the deadline and go on; what it
// has underway, and what it sends when it wakes up, disturbs nobody.
func TestHostStop(t *testing.T) {
	needLibfabric(t)
	for i, op := range operations {
		for j, phase := range phases(op) {
			if os.Getenv("WEFT_TEST_ALL") == "" && (i+j)%4 != 1 {
				continue
			}
			t.Run(op+"/"+phase, func(t *testing.T) {
				t.Parallel()
				stopOne(t, op, phase, (i+3)%crewSize, "aabb")
			})
		}
	}
}

// TestHostTakenBack stops a rank of another host in an operation. The others leave it out at the deadline and go on. It
// wakes, and all take it back: then all goes on as before. Where it was lost meanwhile all are told, and the others go
// on.
func TestHostTakenBack(t *testing.T) {
	needLibfabric(t)
	for i, op := range operations {
		for j, phase := range phases(op) {
			if os.Getenv("WEFT_TEST_ALL") == "" && (i+j)%4 != 2 {
				continue
			}
			t.Run(op+"/"+phase, func(t *testing.T) {
				t.Parallel()
				takeBack(t, op, phase, (i+2)%crewSize)
			})
		}
	}
}

func takeBack(t *testing.T, op, phase string, victim int) {
	crew := startExchange(t, stopDeadlineOfHosts, "aabb")
	all, alive := without(crewSize), without(crewSize, victim)
	crew.Must(all, "begin", exchangeArgs{Seed: 1})
	lose(crew, all, victim, op, phase, crew.Stop)
	crew.Must(alive, "mask", exchangeArgs{Masked: []int{victim}})
	crew.Must(alive, "rounds", exchangeArgs{Seed: 100, Masked: []int{victim}, Rounds: 3})
	crew.Continue(victim)
	switch phase {
	case inside:
		t.Log("its operation: ", crew.Answer(victim).Err)
	case between:
		t.Log("its operation: ", crew.Ask(victim, "go on", exchangeArgs{}).Err)
	}
	back := crew.All(all, "mask", exchangeArgs{})
	if back[victim].Err == "" {
		for r, a := range back {
			if a.Err != "" {
				t.Errorf("rank %d takes it back: %s", r, a.Err)
			}
		}
		crew.Must(all, "rounds", exchangeArgs{Seed: 200, Rounds: 3})
		crew.Must(all, "close", exchangeArgs{})
		return
	}
	t.Log("it is lost: ", back[victim].Err)
	for r, a := range back {
		if a.Peer != victim || a.Cause != "died" {
			t.Errorf("rank %d takes back what is lost: %q (%s, rank %d)", r, a.Err, a.Cause, a.Peer)
		}
	}
	crew.Must(alive, "mask", exchangeArgs{Masked: []int{victim}})
	crew.Must(alive, "rounds", exchangeArgs{Seed: 300, Masked: []int{victim}, Rounds: 3})
	crew.Must(alive, "close", exchangeArgs{})
}
