package bootstrap

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"strconv"
	"sync"
	"time"
)

// EndedVariable names the file in which "weft run" records which ranks of its job have ended, and
// how. Ranks that wait for them to join read it, because no connection tells them. The first line
// is the number of ranks, each further one a rank and a few words:
//
//	4
//	2 exit status 7 after 12ms
//
// Reading it is optional. It is a file of the launcher's memory, which the ranks' user alone can
// open.
const EndedVariable = "WEFT_RUN_ENDED"

const (
	// endedInterval is how often a rank that joins looks into the file.
	endedInterval = 50 * time.Millisecond

	// endedGrace is how long a rank that has not reached rank 0 waits for rank 0 to report an end.
	endedGrace = 5 * endedInterval
)

// ledger is that file, as this rank of so many reads it.
type ledger struct {
	path       string // empty: there is none
	rank, size int
	interval   time.Duration // between looks; 0: endedInterval
}

// ledgerOf is the ledger of the launcher that made this process the rank of so many. Other numbers
// may be of ranks that it knows under others.
func ledgerOf(rank, size int) string {
	e, err := Detect(os.Getenv)
	if err != nil || e.Rank != rank || e.Size != size {
		return ""
	}
	return e.ended
}

// Ended is how a rank of this process's job has ended, in the launcher's words: "exit status 7 after
// 12ms". The process is the rank of so many. The launcher may take a moment to find out, which Ended
// waits for. The text is empty if there is no launcher that says, or the rank has not ended.
func Ended(rank, size, peer int, patience time.Duration) string {
	l := ledger{path: ledgerOf(rank, size), rank: rank, size: size}
	if l.path == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found := ""
	l.interval = endedInterval / 10
	l.watch(ctx, func(r int, how string) {
		if r == peer {
			found = how
			cancel()
		}
	})
	return found
}

// watch calls ended for every other rank that the file says has ended, until the context ends.
// Where there is no such file, or it is about another job, it does nothing.
func (l ledger) watch(ctx context.Context, ended func(rank int, how string)) {
	if l.path == "" {
		return
	}
	f, err := os.Open(l.path)
	if err != nil {
		return // of another namespace, or user
	}
	defer f.Close()
	look := time.NewTicker(cmp.Or(l.interval, endedInterval))
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
			case err != nil, header && n != l.size:
				return
			case header:
				header = false
			case n >= 0 && n < l.size && n != l.rank:
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

// hostUntilEnded begins to watch for ranks that end before they have reached rank 0, which is this
// one. A rank that has reached it is watched by its link.
func (t *tcpRank) hostUntilEnded(path string) (stop func()) {
	ctx, cancel := context.WithCancel(t.life)
	t.mesh.work.Go(func() {
		ledger{path: path, rank: t.rank, size: t.size}.watch(ctx, func(rank int, how string) {
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

// reachUntilEnded is reach, which looks for rank 0, with a context that ends when another rank has:
// no job forms without it. The error is then the *PeerError of the join.
func reachUntilEnded(ctx context.Context, l ledger, reach func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		l.watch(ctx, func(rank int, how string) {
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
	err := reach(ctx)
	if cause, ok := context.Cause(ctx).(*PeerError); ok && err != nil {
		err = cause
	}
	cancel(nil)
	watching.Wait()
	return err
}
