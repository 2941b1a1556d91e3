package bootstrap

import (
	"fmt"
	"testing"
	"time"
)

// TestManyInProcess has 1,024 ranks of one process meet and exchange, and counts the rounds that
// each of them took part in.
func TestManyInProcess(t *testing.T) {
	const size, gathers, barriers = 1024, 2, 2
	ranks, err := NewInProcess(size)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(ranks)
	messages := make([]messageLog, size)
	for r, b := range ranks {
		b.(*mesh).trace = messages[r].add
	}
	ctx := testContext(t)
	for r, err := range onAll(ranks, func(b Bootstrap) error {
		for range gathers {
			all, err := b.AllGather(ctx, fmt.Append(nil, "rank ", b.Rank()))
			if err != nil {
				return err
			}
			for r, got := range all {
				if string(got) != fmt.Sprint("rank ", r) {
					return fmt.Errorf("part of rank %d is %q", r, got)
				}
			}
		}
		for range barriers {
			if err := b.Barrier(ctx); err != nil {
				return err
			}
		}
		return nil
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	checkRounds(t, listed(messages), gathers+barriers)
}

// TestJoinTime has eight ranks join over loopback. The bound leaves room for a busy machine; docs
// give the usual figure.
func TestJoinTime(t *testing.T) {
	const size, runs = 8, 5
	best := time.Hour
	for range runs {
		addr := freeAddress(t)
		messages := make([]messageLog, size)
		start := time.Now()
		ranks := mustDialAll(t, size, func(rank int) (Bootstrap, error) {
			return DialTCP(testContext(t), TCPConfig{
				Rank: rank, Size: size, Address: addr, Secret: []byte("s"),
				trace: messages[rank].add,
			})
		})
		best = min(best, time.Since(start))
		checkRounds(t, listed(messages), 1)
		closeAll(ranks)
	}
	t.Logf("%d ranks join in %v (best of %d)", size, best, runs)
	if best > 50*time.Millisecond {
		t.Errorf("joining takes %v", best)
	}
}

func BenchmarkJoin(b *testing.B) {
	for _, size := range []int{2, 8} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				addr := freeAddress(b)
				ranks, errs := dialAll(size, func(rank int) (Bootstrap, error) {
					return DialTCP(b.Context(), TCPConfig{Rank: rank, Size: size, Address: addr, Secret: []byte("s")})
				})
				for _, err := range errs {
					if err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				closeAll(ranks)
				b.StartTimer()
			}
		})
	}
}

func BenchmarkCollective(b *testing.B) {
	for _, impl := range implementations[:2] {
		for _, size := range []int{2, 8} {
			b.Run(fmt.Sprint(impl.name, "/", size), func(b *testing.B) {
				ranks := impl.make(b, size)
				b.ResetTimer()
				for _, err := range onAll(ranks, func(r Bootstrap) error {
					for range b.N {
						if _, err := r.AllGather(b.Context(), make([]byte, 64)); err != nil {
							return err
						}
					}
					return nil
				}) {
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
