package weft

import (
	"log/slog"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
)

// DefaultDeadline bounds every wait of a communicator unless [WithDeadline] says otherwise.
const DefaultDeadline = 60 * time.Second

type config struct {
	bootstrap bootstrap.Bootstrap
	deadline  time.Duration
	policy    *channel.Policy
	logger    *slog.Logger
	hugePages bool

	context  *cuda.Context
	onDevice bool
	ordinal  int
	onGPU    bool
	driver   func() (*cuda.Driver, error)
	kernels  *kernel.Cache
}

// Option configures [Join].
type Option func(*config)

// WithBootstrap joins through b instead of through what the environment says. The communicator owns
// b from then on.
func WithBootstrap(b bootstrap.Bootstrap) Option { return func(c *config) { c.bootstrap = b } }

// WithDeadline bounds every wait of the communicator, host and device. Contexts may end a wait
// sooner, never later.
func WithDeadline(d time.Duration) Option { return func(c *config) { c.deadline = d } }

// WithWaitPolicy overrides how ranks wait, which otherwise follows from the number of ranks and
// processors.
func WithWaitPolicy(p channel.Policy) Option { return func(c *config) { c.policy = &p } }

// WithLogger receives what is worth telling outside the hot path: joins, faults, masks, and why
// kernels are compiled that a cache should have had (of a cache that [WithKernels] gives its own
// logger is told). The default, and nil, is silence.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithHugePages lets windows use huge pages from the system's pool where it has them. The default
// is true.
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

// WithKernels makes the rank find the code of its kernels in a cache of the caller's. The default
// is the process's, which keeps it in the user's cache directory.
func WithKernels(c *kernel.Cache) Option { return func(o *config) { o.kernels = c } }
