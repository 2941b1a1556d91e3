//go:build unix

package processes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

// partVariable makes the test binary play a part instead of running tests.
const partVariable = "WEFT_TEST_PART"

// InterfaceVariable names the interface by which a crew's processes meet; without it they meet on this host.
const InterfaceVariable = "WEFT_TEST_INTERFACE"

// Command is what a test tells a rank to do.
type Command struct {
	Do   string
	Args json.RawMessage `json:",omitempty"`
}

// Answer is what came of a command.
type Answer struct {
	Err   string          // the error's text; empty when the command succeeded
	Peer  int             // the rank that the error blames; -1 for none
	Cause string          // which of weft's errors it wraps
	Took  time.Duration   // how long the rank was at it
	Value json.RawMessage `json:",omitempty"`
}

// Rank is this process as a rank of a test.
type Rank struct {
	Rank, Size int
	Patience   time.Duration // with which it joins; by default half a minute

	id  bootstrap.ID
	in  *json.Decoder
	out *json.Encoder
}

// Part is what a rank does with commands that are not about meeting. It returns the command's
// value.
type Part interface {
	Do(r *Rank, c Command) (any, error)
}

// Main plays the part that the environment asks for, and reports whether there was one. TestMain
// calls it first.
func Main(parts map[string]func() Part) bool {
	name := os.Getenv(partVariable)
	if name == "" {
		return false
	}
	var r Rank
	if _, err := fmt.Sscanf(name, "%s %d %d", &name, &r.Rank, &r.Size); err != nil || parts[name] == nil {
		panic(fmt.Sprintf("no part %q", name))
	}
	part := parts[name]()
	r.in, r.out = json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c Command
		if err := r.in.Decode(&c); err != nil {
			return true // the test is over
		}
		start := time.Now()
		value, err := r.do(part, c)
		if err := r.out.Encode(answer(value, err, time.Since(start))); err != nil {
			return true
		}
	}
}

func (r *Rank) do(part Part, c Command) (any, error) {
	if c.Do != "id" {
		return part.Do(r, c)
	}
	where := bootstrap.OnLoopback()
	if name := os.Getenv(InterfaceVariable); name != "" {
		where = bootstrap.OnInterface(name)
	}
	id, err := bootstrap.NewID(where)
	if err != nil {
		return nil, err
	}
	r.id = id
	return id.String(), nil
}

// JoinMany makes this process so many consecutive ranks of a communicator, from its number times as many on.
func (r *Rank) JoinMany(id string, each int, options ...weft.Option) ([]*weft.Comm, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(r.Patience, 2*time.Minute))
	defer cancel()
	meeting := r.id
	if r.Rank > 0 {
		var err error
		if meeting, err = bootstrap.ParseID(id); err != nil {
			return nil, err
		}
	}
	group, errs := make([]*weft.Comm, each), make([]error, each)
	var joining sync.WaitGroup
	for i := range group {
		dial := func(ctx context.Context) (bootstrap.Bootstrap, error) {
			return meeting.Dial(ctx, r.Rank*each+i, r.Size*each)
		}
		joining.Go(func() { group[i], errs[i] = weft.Join(ctx, append(slices.Clone(options), weft.WithDial(dial))...) })
	}
	joining.Wait()
	return group, errors.Join(errs...)
}

// Join makes this process a rank of a communicator, at the ID that rank 0 made.
func (r *Rank) Join(id string, options ...weft.Option) (*weft.Comm, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(r.Patience, 30*time.Second))
	defer cancel()
	cfg := bootstrap.TCPConfig{Rank: r.Rank, Size: r.Size, ID: r.id}
	if r.Rank > 0 {
		var err error
		if cfg.ID, err = bootstrap.ParseID(id); err != nil {
			return nil, err
		}
	}
	b, err := bootstrap.DialTCP(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return weft.Join(ctx, append(options, weft.WithBootstrap(b))...)
}

var causes = map[string]error{
	"died": weft.ErrDied, "left": weft.ErrLeft, "timeout": weft.ErrTimeout, "aborted": weft.ErrAborted,
	"unsupported": weft.ErrUnsupported,
	"invalid":     weft.ErrInvalid, "mismatch": weft.ErrMismatch, "closed": weft.ErrClosed, "masked": weft.ErrMasked,
}

func answer(value any, err error, took time.Duration) Answer {
	a := Answer{Peer: -1, Took: took}
	if value != nil {
		raw, merr := json.Marshal(value)
		a.Value, err = raw, errors.Join(err, merr)
	}
	if err == nil {
		return a
	}
	failed := AnswerOf(err)
	a.Err, a.Cause, a.Peer = failed.Err, failed.Cause, failed.Peer
	return a
}

// AnswerOf is what an answer says of an error.
func AnswerOf(err error) Answer {
	a := Answer{Err: err.Error(), Cause: "other", Peer: -1}
	if peer, ok := errors.AsType[*weft.PeerError](err); ok {
		a.Peer = peer.Rank
	}
	for name, cause := range causes {
		if errors.Is(err, cause) {
			a.Cause = name
		}
	}
	return a
}

// Pause answers the command that is being done, before it is done, and waits until the test sends
// another, which counts as the permission to go on. The command is answered again when it is done.
func (r *Rank) Pause() {
	var c Command
	if r.out.Encode(Answer{Peer: -1}) != nil || r.in.Decode(&c) != nil {
		os.Exit(0) // the test is over
	}
}
