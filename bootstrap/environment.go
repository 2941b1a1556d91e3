package bootstrap

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"net"
	"strconv"
	"strings"
)

// DefaultPort is rank 0's port where a launcher gives a host only.
const DefaultPort = 29411

// Environment is the launch environment of this rank, read from the launcher's variables.
type Environment struct {
	// Source names the launcher: "WEFT", "torchrun", "Slurm", "Open MPI", "MPICH", "Kubernetes", or
	// "none".
	Source string

	Rank, Size int

	// LocalRank and LocalSize count the ranks of this host. LocalSize is 0 where the launcher does
	// not say.
	LocalRank, LocalSize int

	// Address is the host:port of rank 0, or of the TCPStore if Store is set. It is empty if the
	// launcher passes it another way, or not at all.
	Address string

	// Store says that a PyTorch TCPStore is the meeting point; Prefix is the prefix of its keys.
	Store  bool
	Prefix string

	// ID is the unique id, if one was handed out.
	ID ID

	// Secret is the job's secret, if the environment has it.
	Secret []byte

	// Interface is the network interface asked for.
	Interface string

	ended string // the file in which the launcher writes down which ranks have ended
	pmi   string // the number of the file descriptor on which a process manager answers
}

// launchers in the order of precedence. Each reports whether it started this process.
var launchers = []struct {
	name   string
	detect func(v *variables, e *Environment) bool
}{
	{"WEFT", detectWeft},
	{"torchrun", detectTorchrun},
	{"Slurm", detectSlurm},
	{"Open MPI", detectOpenMPI},
	{"MPICH", detectMPICH},
	{"Kubernetes", detectKubernetes},
}

// Detect finds out from environment variables which rank this process is and how to meet the
// others. Give it [os.Getenv].
//
// The launcher is the first of these whose variables are set:
//
//	WEFT        WEFT_RANK and WEFT_SIZE
//	torchrun    RANK and WORLD_SIZE; MASTER_ADDR, MASTER_PORT
//	Slurm       SLURM_PROCID within a step of srun
//	Open MPI    OMPI_COMM_WORLD_RANK
//	MPICH       PMI_RANK (Hydra, and others that speak PMI)
//	Kubernetes  LWS_WORKER_INDEX, or JOB_COMPLETION_INDEX with WEFT_SIZE
//
// For every launcher these variables override the values that they name: WEFT_SIZE,
// WEFT_LOCAL_RANK, WEFT_LOCAL_SIZE, WEFT_ADDRESS (rank 0's host:port, with an interface before it as in
// [TCPConfig] if need be), WEFT_STORE (a TCPStore's
// host:port), WEFT_ID, WEFT_SECRET and WEFT_INTERFACE. Without a launcher there is one rank.
//
// The error wraps [ErrEnvironment] and names the variable; the Environment then holds the values
// that were valid.
func Detect(getenv func(string) string) (Environment, error) {
	v := &variables{getenv: getenv}
	e := Environment{Source: "none", Size: 1, LocalSize: 1}
	for _, l := range launchers {
		found := Environment{Source: l.name, Size: 1}
		if l.detect(v, &found) {
			e = found
			break
		}
	}
	e.override(v)
	switch {
	case v.err != nil:
		return e, v.err
	case e.Size < 1:
		return e, fmt.Errorf("%w: %s: %d ranks, want 1 or more", ErrEnvironment, e.Source, e.Size)
	case e.Rank < 0 || e.Rank >= e.Size:
		return e, fmt.Errorf("%w: %s: rank %d of %d ranks, want 0 to %d", ErrEnvironment, e.Source, e.Rank, e.Size, e.Size-1)
	case e.LocalSize < 0 || e.LocalSize > e.Size:
		return e, fmt.Errorf("%w: %s: %d ranks on this host, of %d in all", ErrEnvironment, e.Source, e.LocalSize, e.Size)
	case e.LocalRank < 0 || e.LocalSize > 0 && e.LocalRank >= e.LocalSize:
		return e, fmt.Errorf("%w: %s: local rank %d of %d ranks on this host, want 0 to %d", ErrEnvironment, e.Source,
			e.LocalRank, e.LocalSize, e.LocalSize-1)
	}
	return e, nil
}

// override applies the variables that count under every launcher.
func (e *Environment) override(v *variables) {
	if e.Source == "none" {
		if v.has("WEFT_SIZE") && v.number("WEFT_SIZE") > 1 {
			v.fail("WEFT_SIZE is set but nothing says which rank this is: set WEFT_RANK")
		}
		for _, name := range []string{"WEFT_ADDRESS", "WEFT_STORE", "WEFT_ID"} {
			if v.has(name) { // alone this rank would do the work of all
				v.fail(name + " is set but nothing says which rank of how many this is: set WEFT_RANK and WEFT_SIZE, " +
					"or unset " + name)
			}
		}
	} else if v.has("WEFT_SIZE") {
		e.Size = v.number("WEFT_SIZE")
	}
	if v.has("WEFT_LOCAL_RANK") {
		e.LocalRank = v.number("WEFT_LOCAL_RANK")
	}
	if v.has("WEFT_LOCAL_SIZE") {
		e.LocalSize = v.number("WEFT_LOCAL_SIZE")
	}
	if v.has("WEFT_STORE") {
		e.Address, e.Store = withPort(v.text("WEFT_STORE"), 29500), true
	}
	if v.has("WEFT_ADDRESS") {
		e.Address, e.Store = withPort(v.text("WEFT_ADDRESS"), DefaultPort), false
	}
	if v.has("WEFT_ID") {
		id, err := ParseID(v.text("WEFT_ID"))
		if err != nil {
			v.fail("WEFT_ID: " + err.Error())
		}
		e.ID, e.Address, e.Store = id, "", false
	}
	if v.has("WEFT_SECRET") {
		e.Secret = []byte(v.text("WEFT_SECRET"))
	}
	e.Interface = v.text("WEFT_INTERFACE")
}

// String says in one line which launcher was found, which rank this is, where the ranks meet, and
// how the job is protected.
func (e Environment) String() string {
	if e.Source == "none" {
		return "no launcher: one rank"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: rank %d of %d", e.Source, e.Rank, e.Size)
	if e.LocalSize > 0 {
		fmt.Fprintf(&b, " (local %d of %d)", e.LocalRank, e.LocalSize)
	}
	secret := "no secret: loopback peers only"
	if len(e.Secret) > 0 {
		secret = "with a secret"
	}
	switch {
	case !e.ID.IsZero():
		fmt.Fprintf(&b, ", rank 0 at %s, secret in the unique id", strings.Join(e.ID.targets(), " or "))
	case e.Store && len(e.Secret) == 0:
		fmt.Fprintf(&b, ", TCPStore at %s, which carries the secret", e.Address)
	case e.Store:
		fmt.Fprintf(&b, ", TCPStore at %s, %s", e.Address, secret)
	case e.Address != "":
		fmt.Fprintf(&b, ", rank 0 at %s, %s", e.Address, secret)
	case e.Size == 1:
	case e.pmi != "":
		b.WriteString(", meeting through the process manager, which carries the secret")
	default:
		b.WriteString(", no address of rank 0: set WEFT_ADDRESS")
	}
	return b.String()
}

// Dial joins the job. A job of one rank joins no other.
func (e Environment) Dial(ctx context.Context) (Bootstrap, error) {
	switch {
	case e.Size <= 1:
		alone, err := NewInProcess(1)
		if err != nil {
			return nil, err
		}
		return alone[0], nil
	case e.Store:
		return DialTCPStore(ctx, StoreConfig{
			Rank: e.Rank, Size: e.Size, Address: e.Address, Prefix: e.Prefix, Secret: e.Secret,
			Interface: e.Interface, ended: e.ended,
		})
	case e.ID.IsZero() && e.Address == "" && e.pmi != "":
		id, err := exchangeThroughPMI(ctx, e.pmi, e.Rank, e.LocalSize == e.Size, e.Interface)
		if err != nil {
			return nil, err
		}
		e.ID = id
	case e.ID.IsZero() && e.Address == "":
		return nil, fmt.Errorf("join: %w: %s does not say where rank 0 is: set WEFT_ADDRESS to its "+
			"host:port on every rank", ErrEnvironment, e.Source)
	}
	return DialTCP(ctx, TCPConfig{
		Rank: e.Rank, Size: e.Size, Address: e.Address, ID: e.ID, Secret: e.Secret, Interface: e.Interface, ended: e.ended,
	})
}

// variables reads environment variables and keeps the first complaint.
type variables struct {
	getenv func(string) string
	err    error
}

func (v *variables) text(name string) string { return strings.TrimSpace(v.getenv(name)) }

func (v *variables) has(names ...string) bool {
	for _, n := range names {
		if v.text(n) == "" {
			return false
		}
	}
	return true
}

// number is the value of a variable that must be there. All of them count ranks, or hosts of ranks;
// the packages that join bound their number.
func (v *variables) number(name string) int {
	n, err := strconv.Atoi(v.text(name))
	if err != nil || n < 0 || n > math.MaxInt32 {
		v.fail(fmt.Sprintf("%s is %q, not a whole number from 0 to %d", name, v.text(name), math.MaxInt32))
		return 0
	}
	return n
}

// numberOr is the value of a variable that may be missing.
func (v *variables) numberOr(name string, other int) int {
	if !v.has(name) {
		return other
	}
	return v.number(name)
}

func (v *variables) fail(text string) {
	if v.err == nil {
		v.err = fmt.Errorf("%w: %s", ErrEnvironment, text)
	}
}

// require complains about the names that are missing.
func (v *variables) require(source string, names ...string) {
	for _, n := range names {
		if !v.has(n) {
			v.fail(fmt.Sprintf("%s is not set beside the others of %s: set it, on every rank", n, source))
		}
	}
}

// withPort adds a port to a host that has none.
func withPort(address string, port int) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	if _, _, ok := cutInterface(address); ok {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(port))
}

// derivedPort turns a job's name into a port that is outside the ranges from which systems give
// ports away.
func derivedPort(job string) int {
	h := fnv.New32a()
	h.Write([]byte(job))
	return 15000 + int(h.Sum32()%15000)
}

// onThisHost is the address of rank 0 where all ranks are on one host.
func onThisHost(job string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(derivedPort(job)))
}
