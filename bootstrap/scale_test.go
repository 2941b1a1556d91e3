package bootstrap

import (
	"fmt"
	"testing"
)

// TestManyInProcess has 1,024 ranks of one process meet and exchange, and counts the rounds that
// each of them took part in.
func TestManyInProcess(t *testing.T) {
	const gathers, barriers = 2, 2
	size := 1024
	if testing.Short() {
		size = 256
	}
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

// TestJoinRounds: eight ranks that join over loopback exchange as many messages as one round has.
func TestJoinRounds(t *testing.T) {
	const size = 8
	addr := freeAddress(t)
	messages := make([]messageLog, size)
	ranks := mustDialAll(t, size, func(rank int) (Bootstrap, error) {
		return DialTCP(testContext(t), TCPConfig{
			Rank: rank, Size: size, Address: addr, Secret: []byte("s"),
			trace: messages[rank].add,
		})
	})
	defer closeAll(ranks)
	checkRounds(t, listed(messages), 1)
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
