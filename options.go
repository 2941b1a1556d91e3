package weft

import (
	"context"
	"log/slog"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/trace"
)

// DefaultDeadline bounds every wait of a communicator unless [WithDeadline] says otherwise.
const DefaultDeadline = 60 * time.Second

type config struct {
	bootstrap bootstrap.Bootstrap
	dial      func(context.Context) (bootstrap.Bootstrap, error)
	deadline  time.Duration
	policy    *channel.Policy
	logger    *slog.Logger
	urgent    *slog.Logger // see loggers
	hugePages bool
	foreign   bool          // the launcher knows the ranks under other numbers
	host      string        // which this rank takes its host for
	trace     string        // directory
	traced    *trace.Writer // of the communicator that this one is made of

	context  *cuda.Context
	onDevice bool
	ordinal  int
	onGPU    bool
	driver   func() (*cuda.Driver, error)
	kernels  *kernel.Cache

	fabric func(context.Context, fabric.Options) (*fabric.Domain, error)
}

// Option configures [Join].
type Option func(*config)

// WithBootstrap joins through b; without it the environment decides. The communicator owns b from
// then on.
func WithBootstrap(b bootstrap.Bootstrap) Option { return func(c *config) { c.bootstrap = b } }

// WithDial joins through the bootstrap that dial returns, which the communicator owns. Join calls it
// with its context, so the ranks' meeting counts as a part of the join. [bootstrap.ID.Dial] with a rank
// and a size is one.
func WithDial(dial func(context.Context) (bootstrap.Bootstrap, error)) Option {
	return func(c *config) { c.dial = dial }
}

// WithDeadline bounds every wait of the communicator, host and device. Contexts may end a wait
// sooner, never later.
func WithDeadline(d time.Duration) Option { return func(c *config) { c.deadline = d } }

// WithWaitPolicy sets how ranks wait. The default follows from the number of ranks and processors.
func WithWaitPolicy(p channel.Policy) Option { return func(c *config) { c.policy = &p } }

// WithLogger sets the logger of events outside the hot path: joins, faults, masks, the first call by each
// algorithm of a group of collectives, and kernels that are compiled because no cache has them. (A cache of
// [WithKernels] uses its own logger.) The default, and nil, log what [LogVariable] says.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithHostID names the host that this rank is on, as WEFT_HOSTID does for a process: ranks that give different names
// share no memory. Goroutines of one process play ranks of several hosts by it.
func WithHostID(name string) Option { return func(c *config) { c.host = name } }

// WithTrace has the rank record what its operations do, in a file of the directory, which it makes if need be: see
// package trace, and "weft trace". Every rank that is to be seen has the option, each with a directory of its own host.
// Communicators that are made of this one are recorded, too. The default is [TraceVariable]; "" is off.
func WithTrace(dir string) Option { return func(c *config) { c.trace = dir } }

// WithHugePages lets windows use huge pages from the system's pool, if that has any. The default is
// true.
func WithHugePages(on bool) Option { return func(c *config) { c.hugePages = on } }

// WithDevice binds the rank to the GPU of a context, which is borrowed and outlives the
// communicator. Either all ranks of a communicator are on GPUs or none is. Several may be on one
// GPU.
func WithDevice(c *cuda.Context) Option {
	return func(o *config) { o.context, o.onDevice = c, true }
}

// WithGPU binds the rank to a GPU by its number among those that the process sees. Join opens the
// driver and retains the GPU's primary context, which Close gives back.
func WithGPU(ordinal int) Option {
	return func(o *config) { o.ordinal, o.onGPU = ordinal, true }
}

// WithKernels sets the cache in which the rank finds the code of its kernels. The default is the
// process's cache, which keeps code in the user's cache directory.
func WithKernels(c *kernel.Cache) Option { return func(o *config) { o.kernels = c } }
