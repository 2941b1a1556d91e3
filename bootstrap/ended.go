package bootstrap

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"time"
)

// EndedVariable names the file in which "weft run" writes down which ranks of its job have ended, and how: for those who wait
// for them to join, whom no connection tells. The first line is the number of ranks, each further one a rank and a few words:
//
//	4
//	2 exit status 7 after 12ms
//
// Nobody has to read it. It is a file of the launcher's memory, which the ranks' user alone can open.
const EndedVariable = "WEFT_RUN_ENDED"

const (
	// endedInterval is how often a rank that joins looks into the file.
	endedInterval = 50 * time.Millisecond

	// endedGrace is how long a rank that has not reached rank 0 leaves it to rank 0 to tell.
	endedGrace = 5 * endedInterval
)

// watchEnded calls ended for every other rank that the file says has ended, until the context ends. Where there is no such file, or
// it is about another job, it does nothing.
func (t *tcpRank) watchEnded(ctx context.Context, path string, ended func(rank int, how string)) {
	if path == "" {
		return
	}
	f, err := os.Open(path)
	if err != nil {
		return // of another namespace, or user
	}
	defer f.Close()
	look := time.NewTicker(endedInterval)
	defer look.Stop()
	var text []byte
	var read int64
	header := true
	for {
		var b [512]byte
		for {
			n, _ := f.ReadAt(b[:], read)
			if n == 0 {
				break
			}
			text, read = append(text, b[:n]...), read+int64(n)
		}
		for {
			line, rest, whole := bytes.Cut(text, []byte("\n"))
			if !whole {
				break
			}
			text = rest
			number, how, _ := bytes.Cut(line, []byte(" "))
			n, err := strconv.Atoi(string(number))
			switch {
			case err != nil, header && n != t.size:
				return
			case header:
				header = false
			case n >= 0 && n < t.size && n != t.rank:
				ended(n, string(how))
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// endedEarly is the fault of a rank that has ended without having joined.
func endedEarly(rank int, how string) fault {
	return fault{rank: uint32(rank), reason: reasonDied, text: how + ", before it joined"}
}

// hostUntilEnded begins to watch for ranks that end before they have reached rank 0, which is this one. A rank that has reached it is
// watched by its link.
func (t *tcpRank) hostUntilEnded(path string) (stop func()) {
	ctx, cancel := context.WithCancel(t.life)
	t.mesh.work.Go(func() {
		t.watchEnded(ctx, path, func(rank int, how string) {
			t.mu.Lock()
			arrived := t.out[rank] != nil
			t.mu.Unlock()
			if !arrived {
				t.observe(t.rank, endedEarly(rank, how))
			}
		})
	})
	return cancel
}

// dialUntilEnded is a context for reaching rank 0, which ends when another rank has: no job forms without it. Its cause is then the
// *PeerError of the join.
func (t *tcpRank) dialUntilEnded(ctx context.Context, path string) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	t.mesh.work.Go(func() {
		t.watchEnded(ctx, path, func(rank int, how string) {
			grace := time.NewTimer(endedGrace)
			defer grace.Stop()
			select {
			case <-grace.C:
				f := endedEarly(rank, how)
				cancel(f.err(opJoin.String()))
			case <-ctx.Done():
			}
		})
	})
	return ctx, func() { cancel(nil) }
}

// endedCause is err, or the end of the rank because of which the context ended.
func endedCause(ctx context.Context, err error) error {
	if cause, ok := context.Cause(ctx).(*PeerError); ok && err != nil {
		return cause
	}
	return err
}
