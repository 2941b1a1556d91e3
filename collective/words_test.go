package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/internal/ranktest"
)

// wordsCase is an all-gather or a reduce-scatter with words.
type wordsCase struct {
	dtype   weft.DType
	count   int // elements of a part
	chunks  int // of a rank; ranks may have different ones
	inPlace bool
	name    string
	number  int
}

// part is what a rank has for another in a reduce-scatter, or for all in an all-gather.
func (c *wordsCase) part(from, to int) []byte {
	b := make([]byte, c.count*c.dtype.Size())
	for i := 0; i < len(b); i += c.dtype.Size() {
		putNumber(c.dtype, b[i:], (from*7+to*13+c.number+i)%31-15)
	}
	return b
}

func putNumber(d weft.DType, b []byte, x int) {
	if isFloat(d) {
		store32(d, b, float32(x))
		return
	}
	for i := range d.Size() {
		b[i] = byte(x >> (8 * i))
	}
}

// gathered and reduced are what a rank gets.
func (c *wordsCase) gathered(live []int, ranks int) []byte {
	all := bytes.Repeat([]byte{0xA5}, ranks*c.count*c.dtype.Size())
	for _, r := range live {
		copy(all[r*c.count*c.dtype.Size():], c.part(r, 0))
	}
	return all
}

func (c *wordsCase) reduced(me int, live []int) []byte {
	var rows [][]byte
	for _, r := range live {
		rows = append(rows, c.part(r, me))
	}
	return reference(weft.Sum, c.dtype, nil, rows)
}

// chunk is where a chunk lies in a part.
func (c *wordsCase) chunk(i, chunks int) (from, to int) {
	n := c.count * c.dtype.Size()
	size := spec.Chunk(n, chunks)
	return min(i*size, n), min((i+1)*size, n)
}

// gatherOnHost gathers while another goroutine reads what has landed.
func (c *wordsCase) gatherOnHost(ctx context.Context, g *Group, me, ranks int, mem []byte) error {
	n := c.count * c.dtype.Size()
	out := mem[:ranks*n]
	in := mem[ranks*n:][:n]
	if c.inPlace {
		in = out[me*n:][:n]
	}
	copy(in, c.part(me, 0))
	words := bytes.Repeat([]byte{0, 0, 0, 0, 0, 0, 0, 0}, ranks*c.chunks)
	tensor := weft.TensorAt(words, weft.Uint64, ranks, c.chunks)
	word := weft.SliceOf[uint64](tensor)
	read := make(chan error, 1)
	for call := range uint64(2) {
		go func() { read <- c.readsOnHost(out, word, call+1, me, ranks) }()
		err := g.Do(ctx, nil, Call{
			Collective: AllGather, In: weft.TensorAt(in, c.dtype, c.count), Out: weft.TensorAt(out, c.dtype, ranks*c.count),
			Words: Words{Progress: tensor}, Algorithm: c.name,
		})
		// The next call writes what the reader reads.
		if err := errors.Join(err, <-read); err != nil {
			return err
		}
		for i, w := range word {
			if w != call+1 {
				return fmt.Errorf("word %d is %d after %d calls", i, w, call+1)
			}
		}
	}
	return nil
}

// readsOnHost reads each chunk of an all-gather as soon as its word says that so many calls have written it.
func (c *wordsCase) readsOnHost(out []byte, word []uint64, calls uint64, me, ranks int) error {
	n := c.count * c.dtype.Size()
	begun := time.Now()
	for k := range ranks {
		r := (me + k) % ranks
		for i := range c.chunks {
			for atomic.LoadUint64(&word[r*c.chunks+i]) < calls {
				if time.Since(begun) > 10*time.Second {
					return fmt.Errorf("chunk %d of rank %d has not landed", i, r)
				}
				time.Sleep(10 * time.Microsecond)
			}
			if from, to := c.chunk(i, c.chunks); !bytes.Equal(out[r*n+from:r*n+to], c.part(r, 0)[from:to]) {
				return fmt.Errorf("chunk %d of rank %d differs", i, r)
			}
		}
	}
	return nil
}

// reduceOnHost reduces what another goroutine makes meanwhile.
func (c *wordsCase) reduceOnHost(ctx context.Context, g *Group, me, ranks int, mem []byte) error {
	n := c.count * c.dtype.Size()
	in, out := mem[:ranks*n], mem[ranks*n:][:n]
	if c.inPlace {
		out = in[me*n:][:n]
	}
	tensor := weft.TensorOf(make([]int64, ranks*c.chunks))
	word := weft.SliceOf[int64](tensor)
	made := make(chan struct{})
	go func() {
		for r := range ranks {
			for i := range c.chunks {
				from, to := c.chunk(i, c.chunks)
				copy(in[r*n+from:r*n+to], c.part(me, r)[from:to])
				atomic.StoreInt64(&word[r*c.chunks+i], 1)
			}
			time.Sleep(time.Duration(me) * 100 * time.Microsecond)
		}
		close(made)
	}()
	err := g.Do(ctx, nil, Call{
		Collective: ReduceScatter, In: weft.TensorAt(in, c.dtype, ranks*c.count), Out: weft.TensorAt(out, c.dtype, c.count),
		Words: Words{Ready: tensor}, Algorithm: c.name,
	})
	<-made
	if err != nil {
		return err
	}
	if want := c.reduced(me, ranksUpTo(ranks)); !bytes.Equal(out, want) {
		return errors.New("the result differs")
	}
	for i, w := range word {
		if w != 0 {
			return fmt.Errorf("word %d is %d", i, w)
		}
	}
	return nil
}

// TestWords: what runs beside a call meets it chunk by chunk, by every algorithm.
func TestWords(t *testing.T) {
	const ranks = 3
	large := 70_001
	if testing.Short() {
		large = 9001
	}
	err := ranktest.Run(ranks, ranktest.OnHost, func(ctx context.Context, comm *weft.Comm) (err error) {
		g, err := New(ctx, comm, Options{Scratch: 128 << 10})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		w, err := comm.Alloc(ctx, 4<<20)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		for _, form := range []string{"", "eager", "pull", "pipeline"} {
			for number, count := range []int{0, 1, 37, 1000, large} {
				if form == "eager" && count > 1000 {
					continue
				}
				mem := make([]byte, 4<<20)
				if form == "pull" {
					mem = w.Bytes()
				}
				c := wordsCase{
					dtype: []weft.DType{weft.BFloat16, weft.Int32, weft.Uint8}[number%3], count: count, inPlace: number%2 == 1,
					chunks: 1 + number*2 + comm.Rank(), number: number,
				}
				name := func(k Collective) string {
					if form == "" {
						return ""
					}
					return k.String() + "/" + form
				}
				c.name = name(AllGather)
				if err := c.gatherOnHost(ctx, g, comm.Rank(), ranks, mem); err != nil {
					return fmt.Errorf("%s, %+v: %w", form, c, err)
				}
				c.name = name(ReduceScatter)
				if err := c.reduceOnHost(ctx, g, comm.Rank(), ranks, mem); err != nil {
					return fmt.Errorf("%s, %+v: %w", form, c, err)
				}
			}
		}
		x := weft.TensorOf(make([]float32, 6))
		for word, c := range map[string]Call{
			"words of":    {Collective: AllGather, Words: Words{Progress: weft.TensorOf(make([]uint64, 4))}},
			"ready words": {Collective: AllGather, Words: Words{Ready: weft.TensorOf(make([]uint64, 3))}},
			"as many":     {Collective: AllGather, Words: Words{Progress: weft.TensorOf(make([]uint32, 3))}},
			"progress":    {Collective: AllReduce, Words: Words{Progress: weft.TensorOf(make([]uint64, 3))}},
		} {
			c.In, c.Out = weft.TensorOf(make([]float32, 2)), x
			if c.Collective == AllReduce {
				c.In = weft.TensorOf(make([]float32, 6))
			}
			if err := g.Do(ctx, nil, c); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), word) {
				return fmt.Errorf("%q: %w", word, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNotReady: a word that is not raised is an error at the deadline, on every rank, that names the word.
func TestNotReady(t *testing.T) {
	err := ranktest.Run(2, func(int) []weft.Option {
		return []weft.Option{weft.WithDeadline(300 * time.Millisecond)}
	}, func(ctx context.Context, comm *weft.Comm) (err error) {
		g, err := New(ctx, comm, Options{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		words := []uint64{1, 1, 1, 1, 1, 1}
		if comm.Rank() == 1 {
			words[2] = 0
		}
		f := make([]float32, 32)
		err = g.ReduceScatterReady(ctx, nil, weft.TensorOf(f[24:]), weft.TensorOf(f[:16]), weft.TensorOf(words), weft.Sum)
		late, ok := errors.AsType[*weft.PeerError](err)
		if !ok || late.Rank != 1 || !errors.Is(err, weft.ErrTimeout) ||
			!strings.Contains(err.Error(), "reduce-scatter: rank 1: no answer before the deadline: of the 3 ready words of "+
				"its input's part for rank 0 that of chunk 2 is 0") {
			return fmt.Errorf("rank %d: %w", comm.Rank(), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
