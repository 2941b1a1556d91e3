package weft

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/weftgo/weft/bootstrap"
)

// LogVariable is the environment variable that has every communicator of a process log to standard
// error, beside the logger of [WithLogger]. Its values are
//
//	info         joins, masks, faults, and waits of more than ten seconds
//	debug        also which algorithms and kernels were chosen
//	info,json    the same as lines of JSON
//	warn, off    faults and long waits only; nothing
//
// Without it, and without a logger, only two things are logged: that a join waits for more than ten
// seconds, and that a trace cannot be written. Records have the attributes comm (the same on every
// rank), rank, and where they apply op and peer.
const LogVariable = "WEFT_LOG"

// loggers are where a communicator logs, and where it logs what is said without being asked for: that its join waits,
// and that its trace is incomplete.
func loggers(given *slog.Logger, value string, to io.Writer) (comm, urgent *slog.Logger, err error) {
	none := slog.New(slog.DiscardHandler)
	level, format, _ := strings.Cut(value, ",")
	options := &slog.HandlerOptions{}
	switch level {
	case "":
		if given == nil {
			options.Level = slog.LevelWarn
			return none, slog.New(slog.NewTextHandler(to, options)), nil
		}
		fallthrough
	case "off":
		if given == nil {
			given = none
		}
		return given, given, nil
	case "warn":
		options.Level = slog.LevelWarn
	case "info":
		options.Level = slog.LevelInfo
	case "debug":
		options.Level = slog.LevelDebug
	default:
		return nil, nil, Invalidf("join: %s=%s: it is off, warn, info or debug, with \",json\" behind it for lines of JSON",
			LogVariable, value)
	}
	var handler slog.Handler = slog.NewTextHandler(to, options)
	switch format {
	case "":
	case "json":
		handler = slog.NewJSONHandler(to, options)
	default:
		return nil, nil, Invalidf("join: %s=%s: \"json\" alone may stand behind the comma", LogVariable, value)
	}
	if given != nil {
		handler = slog.NewMultiHandler(given.Handler(), handler)
	}
	logger := slog.New(handler)
	return logger, logger, nil
}

// reportWaits is what a join's long waits say.
func reportWaits(to *slog.Logger) func(bootstrap.Wait) {
	return func(w bootstrap.Wait) {
		attrs := []any{"op", w.Op}
		if len(w.Ranks) == 1 {
			attrs = append(attrs, "peer", w.Ranks[0])
		}
		to.Warn(w.String(), attrs...)
	}
}

// reportWait is what a long wait of an operation says. It is called by the goroutine that waits.
func (c *Comm) reportWait(op string, peer int, waited time.Duration) {
	who := fmt.Sprintf("rank %d of %d", peer, c.size)
	if pid := c.processOf(peer); pid != 0 {
		who = fmt.Sprintf("%s (process %d)", who, pid)
	}
	message := fmt.Sprintf("waiting for %s for %s", who, bootstrap.Seconds(waited))
	if s := c.control.Waiter.Peers[peer]; s != nil {
		if r := s.Record(); r.Peer >= 0 && r.Peer != peer {
			message = fmt.Sprintf("%s; it waits for rank %d in %s", message, r.Peer, r.What())
		}
	}
	c.logger.Warn(message, "op", op, "peer", peer)
}

// logJoin says what a communicator is made of.
func (c *Comm) logJoin(took time.Duration) {
	engine, transport := "host", "shared memory"
	memory := 0
	for _, r := range c.regions {
		if r != nil {
			memory += len(r.Bytes())
		}
	}
	switch {
	case c.remote >= 0:
		transport = "shared memory within a host, libfabric between hosts"
	case c.size == 1:
		transport = "none"
	case c.device != nil && c.device.virtual:
		transport = "peer access, virtual memory"
	case c.device != nil:
		transport = "peer access, IPC"
	}
	if c.device != nil {
		engine = "gpu"
	}
	c.logger.Info("joined", "op", "join", "ranks", c.size, "local", c.local, "hosts", slices.Max(c.hosts)+1,
		"engine", engine, "transport", transport,
		"control_bytes", memory, "deadline", c.Deadline().String(), "took", took.Round(time.Microsecond).String())
}
