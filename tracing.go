package weft

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/weftgo/weft/internal/shm"
	"github.com/weftgo/weft/trace"
)

// TraceVariable is the environment variable that names the directory of [WithTrace], for ranks without that option.
const TraceVariable = "WEFT_TRACE"

// openTrace makes the rank's file, or a part of that of the communicator that this one is made of.
func (c *Comm) openTrace(cfg config, name, host string) (err error) {
	switch {
	case cfg.traced != nil:
		c.trace = cfg.traced.Within(name, c.rank, c.size)
		return nil
	case cfg.trace == "":
		return nil
	}
	if host, err = shm.HostName(host); err != nil {
		return err
	}
	c.trace, err = trace.Create(cfg.trace, trace.Header{
		Rank: c.rank, Size: c.size, Comm: name, Host: host, PID: os.Getpid(), Version: Version(),
		Command: filepath.Base(os.Args[0]),
	})
	if err != nil {
		return fmt.Errorf("%w; name a directory that can be written, as %s does, or none", err, TraceVariable)
	}
	if c.rank == 0 {
		c.logger.Info("operations are traced", "op", "join", "directory", cfg.trace)
	}
	return nil
}

// flushTrace writes what has been recorded: a failure may be the last thing that this process sees.
func (c *Comm) flushTrace() {
	if c.trace != nil {
		c.warnOfTrace(c.trace.Flush())
	}
}

// closeTrace ends what has been recorded. That it could not be written is no failure of the job.
func (c *Comm) closeTrace() {
	if c.trace != nil {
		c.warnOfTrace(c.trace.Close())
	}
}

// warnOfTrace says why the trace is incomplete, if it is, once.
func (c *Comm) warnOfTrace(err error) {
	if err != nil {
		c.warned.Do(func() { c.urgent.Warn("the trace is incomplete", "op", "trace", "error", err.Error()) })
	}
}
