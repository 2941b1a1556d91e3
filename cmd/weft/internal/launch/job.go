package launch

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weftgo/weft/bootstrap"
)

// ErrNeedsLinux is returned on other operating systems.
var ErrNeedsLinux = errors.New("starting ranks needs Linux")

// Bind says whether ranks are pinned to CPUs.
type Bind string

// The ways to pin. Rank i of n gets the i-th of n slices of the allowed CPUs,
// neighbouring cores together.
const (
	BindAuto Bind = "auto" // pin when there are at least as many CPUs as ranks
	BindOn   Bind = "on"   // pin, or fail
	BindOff  Bind = "off"  // leave it to the operating system
)

// Binds lists them, the default first.
func Binds() []Bind { return []Bind{BindAuto, BindOn, BindOff} }

// Job describes the ranks to start.
type Job struct {
	Program string   // looked up in PATH, as a shell does
	Args    []string // without the program's name
	Size    int      // ranks
	Hosts   int      // network namespaces to divide them among; 0 is this host as it is
	Env     []string // K=V, added to this process's environment
	Bind    Bind
	Grace   time.Duration // from the first failure to SIGTERM, and from there to SIGKILL
	Timeout time.Duration // for the whole job; zero is none
	Stdin   *os.File      // rank 0's; nil is the null device, which the others always read
	Sink    Sink
}

// Result is how a job ended.
type Result struct {
	Code   int    // exit status for the launcher: 0, or that of the first failure
	Rank   int    // which failed first; -1 is none
	Reason string // why, in words
}

// Exit statuses that are not a rank's own, as shells and timeout(1) use them.
const (
	CodeTimeout       = 124
	CodeNotExecutable = 126
	CodeNotFound      = 127
	codeForbidden     = 2   // what the job asks for is not to be had here
	codeSignal        = 128 // plus the signal's number
)

// mostHosts is how many namespaces are made for a job.
const mostHosts = 64

// place is where a rank is: on which host, and which one it is of how many there. Hosts have consecutive
// ranks, and the first ones have one more where they do not come out even.
func (j *Job) place(rank int) (host, local, size int) {
	hosts := max(j.Hosts, 1)
	for first := 0; ; first += size {
		size = j.Size / hosts
		if host < j.Size%hosts {
			size++
		}
		if rank < first+size {
			return host, rank - first, size
		}
		host++
	}
}

// Validate checks the job.
func (j *Job) Validate() error {
	if j.Size < 1 {
		return fmt.Errorf("a job needs at least one rank, not %d", j.Size)
	}
	if j.Hosts < 0 || j.Hosts > min(j.Size, mostHosts) {
		return fmt.Errorf("%d hosts for %d ranks: want a rank on each, and at most %d hosts", j.Hosts, j.Size, mostHosts)
	}
	if !slices.Contains(Binds(), j.Bind) {
		return fmt.Errorf("--bind %q: want one of %v", j.Bind, Binds())
	}
	if j.Grace < 0 {
		return fmt.Errorf("--grace %v: want 0 or more", j.Grace)
	}
	if j.Timeout < 0 {
		return fmt.Errorf("--timeout %v: want 0, which is none, or more", j.Timeout)
	}
	for _, kv := range j.Env {
		k, _, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return fmt.Errorf("environment entry %q is not KEY=VALUE", kv)
		}
		if owned[k] {
			return fmt.Errorf("%s is set by the launcher for each rank", k)
		}
	}
	return nil
}

// Variables that give a rank its place; package bootstrap reads them.
const (
	envRank      = "WEFT_RANK"
	envSize      = "WEFT_SIZE"
	envLocalRank = "WEFT_LOCAL_RANK"
	envLocalSize = "WEFT_LOCAL_SIZE"
	envAddress   = "WEFT_ADDRESS"
	envSecret    = "WEFT_SECRET"
)

// lifelineEnv carries, from guard to supervisor, the descriptor of the pipe that
// reads end of file when the guard is gone.
const lifelineEnv = "WEFT_RUN_LIFELINE"

// envEnded names the file in which the launcher writes down which ranks have ended.
const envEnded = bootstrap.EndedVariable

// owned are the variables a rank gets from here or not at all. A unique id or an
// interface inherited from an enclosing job would send it elsewhere.
var owned = map[string]bool{
	envRank: true, envSize: true, envLocalRank: true, envLocalSize: true,
	envAddress: true, envSecret: true, lifelineEnv: true, envEnded: true,
	"WEFT_ID": true, "WEFT_INTERFACE": true,
}

// environment returns base without our variables and those that extra overrides, then extra. C
// libraries take the first of two equal keys, so none may remain.
func environment(base, extra []string) []string {
	drop := map[string]bool{}
	for _, kv := range extra {
		k, _, _ := strings.Cut(kv, "=")
		drop[k] = true
	}
	var env []string
	for _, kv := range base {
		if k, _, _ := strings.Cut(kv, "="); !owned[k] && !drop[k] {
			env = append(env, kv)
		}
	}
	last := map[string]int{}
	for i, kv := range extra {
		k, _, _ := strings.Cut(kv, "=")
		last[k] = i
	}
	for i, kv := range extra {
		if k, _, _ := strings.Cut(kv, "="); last[k] == i {
			env = append(env, kv)
		}
	}
	return env
}

// Sink receives a job's events one at a time, in order.
type Sink interface {
	Put(Event) error
	Flush() error
}
