package weft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/relay"
	"github.com/weftgo/weft/internal/shm"
	"github.com/weftgo/weft/internal/simd"
)

// Join makes this process, or this goroutine, a rank of a communicator. Without [WithBootstrap] the
// environment gives the rank, the number of ranks and the address of the others (see
// [bootstrap.Detect]); without an environment this is the only rank. Join is collective and returns
// when all ranks have joined.
func Join(ctx context.Context, options ...Option) (*Comm, error) {
	cfg := config{
		deadline: DefaultDeadline, hugePages: true, driver: cuda.Open, trace: os.Getenv(TraceVariable),
	}
	for _, o := range options {
		o(&cfg)
	}
	return joinAs(ctx, cfg)
}

// joinAs is Join by options that have been read.
func joinAs(ctx context.Context, options config) (_ *Comm, err error) {
	rank, cfg := 0, options
	defer func() { err = ownLimit("join", rank, err) }()
	begun := time.Now()
	if cfg.logger, cfg.urgent, err = loggers(cfg.logger, os.Getenv(LogVariable), os.Stderr); err != nil {
		return nil, err
	}
	b := cfg.bootstrap
	switch {
	case b != nil:
	case cfg.dial != nil:
		if b, err = cfg.dial(bootstrap.WithReport(ctx, reportWaits(cfg.urgent))); err != nil {
			return nil, err
		}
	default:
		env, err := bootstrap.Detect(os.Getenv)
		if err != nil {
			return nil, fmt.Errorf("join: %w", err)
		}
		cfg.logger.Debug("launch environment", "rank", env.Rank, "op", "join", "environment", env.String())
		if err := checkSize(env.Size); err != nil {
			return nil, err
		}
		rank = env.Rank
		if b, err = env.Dial(bootstrap.WithReport(ctx, reportWaits(cfg.urgent.With("rank", env.Rank)))); err != nil {
			return nil, err
		}
	}
	rank = b.Rank()
	c, err := join(bootstrap.WithReport(ctx, reportWaits(cfg.urgent.With("rank", rank))), b, cfg)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	c.options = options
	c.options.traced = c.trace
	c.logJoin(time.Since(begun))
	return c, nil
}

// checkSize refuses jobs that are too large. Every rank knows the size, so all of them refuse
// before they meet.
func checkSize(ranks int) error {
	if ranks > MaxRanks {
		return Unsupportedf("join: %d ranks; a communicator has at most %d: split the job into groups", ranks, MaxRanks)
	}
	return nil
}

func join(ctx context.Context, b bootstrap.Bootstrap, cfg config) (_ *Comm, err error) {
	if err := checkSize(b.Size()); err != nil {
		return nil, err
	}
	if cfg.deadline <= 0 {
		return nil, Invalidf("join: a deadline of %v; every wait must end", cfg.deadline)
	}
	// A peer that fails half-way may live on and report nothing: joining ends at the deadline like
	// every other wait.
	ctx, cancel := awake(ctx, cfg.deadline)
	defer cancel()
	host, err := hostOf(cfg.host, b.Rank())
	if err == nil {
		err = CheckEnvironment()
	}
	if err != nil {
		return nil, giveUp(b, err)
	}
	listener, err := shm.ListenOn(host)
	if err != nil {
		return nil, giveUp(b, err)
	}
	gpu, unbound := openDevice(cfg)
	defer func() {
		if err != nil && gpu != nil {
			err = errors.Join(err, gpu.close())
		}
	}()
	roster, err := exchangePeerInfo(ctx, b, peerInfo{address: listener.Address(), device: gpu.message(unbound)})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	peers := roster.peers
	c := &Comm{
		rank:      b.Rank(),
		size:      b.Size(),
		bootstrap: b,
		logger:    cfg.logger.With("comm", roster.name(), "rank", b.Rank()),
		urgent:    cfg.urgent.With("comm", roster.name(), "rank", b.Rank()),
		hugePages: cfg.hugePages,
		remote:    -1,
		device:    gpu,

		hosts:       roster.hosts,
		sameProcess: make([]bool, b.Size()),
		processes:   make([]int, b.Size()),
		ends:        ends{how: map[int]string{}, asked: map[int]bool{}, foreign: cfg.foreign},
	}
	c.gate = c.Operations().Gate("communicator")
	if err := c.openTrace(cfg, roster.name(), host); err != nil {
		return nil, errors.Join(giveUp(b, err), listener.Close())
	}
	defer func() {
		if err != nil {
			c.closeTrace()
		}
	}()
	c.record = &c.noRecord
	var cpus channel.CPUs
	addresses := make([]shm.Address, c.size)
	for r, p := range peers {
		switch {
		case c.hosts[r] != c.hosts[c.rank]:
			if c.remote < 0 {
				c.remote = r
			}
			continue // its address stays empty: the mesh is this host's
		case roster.processOf[r] == roster.processOf[c.rank]:
			c.inProcess++
			c.sameProcess[r] = true
		}
		addresses[r] = p.address
		c.local++
		c.processes[r] = p.address.PID
		cpus.Add(p.cpus)
	}

	if err := gpu.checkPeers(peers, c.inProcess == c.local, c.hosts, unbound); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	policy := channel.PolicyFor(c.local, c.inProcess, cpus.Count())
	if cfg.policy != nil {
		policy = *cfg.policy
	}
	region, err := shm.Create("weft-control", control.PageSize, shm.Options{Huge: shm.HugeOff, Populate: true})
	if err != nil {
		return nil, errors.Join(giveUp(b, err), listener.Close())
	}
	c.control = control.New(control.Config{
		Rank: c.rank, Size: c.size, InProcess: c.inProcess, Policy: policy, Timeout: cfg.deadline,
		Fault: c.fault, Blame: c.spread, Explain: c.explain, Report: c.reportWait, RefusedAs: ErrInvalid,
		Logger: c.logger,
	}, region.Bytes())
	// A rank that cannot use its device continues until it can report that to the others.
	if gpu != nil {
		if unbound = gpu.bind(ctx, region); unbound == nil {
			c.record = gpu.record
		}
	}
	c.met = bootstrap.Met(c.bootstrap)
	if c.remote >= 0 {
		if c.node, err = c.openNode(ctx, roster, cfg.bootstrap == nil && cfg.dial == nil); err != nil {
			return nil, errors.Join(giveUp(b, err), listener.Close(), gpu.close(), region.Release())
		}
		defer func() {
			if err != nil {
				c.node.Forsake()
			}
		}()
	}

	ctx, stop := untilBlamed(ctx, b)
	defer stop()
	failure := error(nil)
	listener.OnFailure = func(err error) { failure = giveUp(b, err) }
	c.mesh, err = listener.Connect(ctx, c.rank, addresses, c.event)
	if err != nil {
		if failure == nil {
			failure = giveUp(b, err)
		}
		return nil, errors.Join(failure, gpu.close(), region.Release())
	}
	c.regions, err = c.mesh.Exchange(ctx, 0, region, nil)
	if err != nil {
		return nil, errors.Join(giveUp(b, err), c.mesh.Close(), gpu.close(), region.Release())
	}
	pages := make([][]byte, c.size)
	for r, g := range c.regions {
		if g != nil {
			pages[r] = g.Bytes()
		}
	}
	if c.node == nil {
		c.control.Connect(pages, control.Shared(pages))
	} else if err = c.connectHosts(ctx, pages); err != nil {
		err = giveUp(b, err)
	}
	if err == nil && gpu != nil {
		err = c.verifyDevices(ctx, unbound)
	}
	if err != nil {
		errs := []error{err}
		if c.between != nil {
			c.between.Leave()
		}
		errs = append(errs, c.mesh.Close(), gpu.close())
		for _, g := range c.regions {
			if g != nil {
				errs = append(errs, g.Release())
			}
		}
		return nil, errors.Join(errs...)
	}
	return c, nil
}

// NoPeerVariable is the variable of the environment that, set to 1, has each rank on a host of its own: no rank maps
// another's memory.
const NoPeerVariable = "WEFT_NO_PEER"

// hostOf is the name of the host that a rank is on.
func hostOf(name string, rank int) (string, error) {
	switch text := os.Getenv(NoPeerVariable); text {
	case "", "0":
		return name, nil
	case "1":
		name, err := shm.HostName(name)
		return fmt.Sprintf("%s of rank %d", name, rank), err
	default:
		return "", Invalidf("%s=%s: set it to 1 or 0", NoPeerVariable, text)
	}
}

// CheckEnvironment refuses what Join refuses of this process's environment: variables whose values mean nothing, also
// those that the job has no use for, since who set one believes that it works.
func CheckEnvironment() error {
	if _, err := multicastAsked(); err != nil {
		return err
	}
	if err := simd.CheckName(os.Getenv(simd.Variable)); err != nil {
		return Invalidf("%v", err)
	}
	if _, err := hostOf("any", 0); err != nil {
		return err
	}
	_, err := heartbeatOf(os.Getenv(relay.Variable))
	return err
}

// newsTime bounds the wait for the reason why a peer ended while ranks join. The reason arrives
// within a few milliseconds, if at all.
const newsTime = 100 * time.Millisecond

// giveUp handles an error that ends this rank's join: it finds the culprit and reports it to the
// other ranks, before they see this rank end.
func giveUp(b bootstrap.Bootstrap, err error) error {
	if !names(err, "join") {
		err = translate("join", err)
	}
	err = ownLimit("join", b.Rank(), err)
	witness, ok := b.(bootstrap.Witness)
	if !ok {
		return err
	}
	culprit, why, wait := b.Rank(), err, newsTime
	if peer, ok := errors.AsType[*PeerError](err); ok {
		culprit, why = peer.Rank, peer.Err
	}
	switch {
	case errors.Is(err, context.Canceled): // by the caller: the awaited peer is not to blame
		culprit, why = b.Rank(), fmt.Errorf("%w: its caller cancelled", ErrAborted)
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		why, wait = ErrTimeout, 0
	}
	if culprit != b.Rank() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		if known := witness.Blamed(ctx, "join"); known != nil {
			return known
		}
	}
	witness.Blame(culprit, why)
	return err
}

// untilBlamed is a context that ends when a rank reports that its join has failed. This rank may
// wait for that rank without a connection to it. Reports of deaths do not end the context: the
// connection shows a death, after all that the rank sent before. A rank that left may have joined.
func untilBlamed(ctx context.Context, b bootstrap.Bootstrap) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	if witness, ok := b.(bootstrap.Witness); ok {
		watching.Go(func() {
			if known := witness.Blamed(ctx, "join"); known != nil && !errors.Is(known, ErrDied) {
				cancel(known)
			}
		})
	}
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}

// awake is a context that ends when this process has run for the limit. Time in which the process
// was stopped does not count, because peers are not to blame for it.
func awake(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch channel.Stopwatch
	watch.Look()
	const pace = 10 * time.Millisecond
	var timer *time.Timer
	timer = time.AfterFunc(limit, func() {
		switch left := limit - watch.Look(); {
		case ctx.Err() != nil:
		case left > 0:
			timer.Reset(min(pace, left))
		default:
			cancel(ErrTimeout)
		}
	})
	timer.Reset(min(pace, limit))
	return ctx, func() {
		cancel(nil)
		timer.Stop()
	}
}

// verifyDevices refuses, on every rank alike, GPUs that could not be set up and GPUs that cannot
// reach each other.
func (c *Comm) verifyDevices(ctx context.Context, own error) error {
	if own == nil {
		own = c.device.checkAccess(c.rank, c.hosts)
	}
	return c.verifySame(ctx, "join", "ready", own)
}

// peerInfo is a rank's address, processors and GPU, which ranks exchange through the bootstrap.
type peerInfo struct {
	address shm.Address
	cpus    channel.CPUs // ranks may be bound to different ones
	device  []byte       // a message: a gpuInfo, or the reason why there is no GPU; empty on the host
}

const peerInfoVersion = 3

// append encodes the information.
func (c *peerInfo) append(b []byte) ([]byte, error) {
	raw, err := c.address.MarshalBinary()
	if err != nil {
		return nil, err
	}
	b = binary.LittleEndian.AppendUint32(b, peerInfoVersion)
	b = c.cpus.Append(b)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(c.device)))
	return append(append(b, c.device...), raw...), nil
}

// parsePeerInfo decodes another rank's information.
func parsePeerInfo(raw []byte) (c peerInfo, err error) {
	const fixed = 4 + channel.CPUBytes + 2
	if len(raw) >= 4 && binary.LittleEndian.Uint32(raw) != peerInfoVersion {
		return peerInfo{},
			fmt.Errorf("%w: its join information is of version %d, this rank's of version %d: install the same "+
				"Weft for every rank",
				ErrMismatch, binary.LittleEndian.Uint32(raw), peerInfoVersion)
	}
	if len(raw) < fixed {
		return peerInfo{}, fmt.Errorf("%w: %d bytes of join information", ErrMismatch, len(raw))
	}
	c.cpus = channel.ParseCPUs(raw[4:])
	n := int(binary.LittleEndian.Uint16(raw[fixed-2:]))
	if n > noteSize || n > len(raw)-fixed {
		return peerInfo{}, fmt.Errorf("%w: %d bytes about its GPU", ErrMismatch, n)
	}
	c.device = bytes.Clone(raw[fixed : fixed+n])
	if err := c.address.UnmarshalBinary(raw[fixed+n:]); err != nil {
		return peerInfo{}, fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	return c, nil
}
