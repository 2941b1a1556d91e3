package shm

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkConnect forms and closes a mesh. Ranks are goroutines that talk through sockets, so the
// time is that of all of them on the processors of this process.
func BenchmarkConnect(b *testing.B) {
	for _, n := range []int{2, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				listeners, addrs := listen(b, n, apart)
				each(n, func(i int) {
					m, err := listeners[i].Connect(context.Background(), i, addrs, nil)
					if err != nil {
						b.Error(err)
						return
					}
					if err := m.Close(); err != nil {
						b.Error(err)
					}
				})
			}
		})
	}
}

func BenchmarkExchange(b *testing.B) {
	for _, n := range []int{2, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ranks := mesh(b, n, apart)
			own := make([]*Region, n)
			for i := range own {
				own[i] = create(b, 1<<20, Options{Huge: HugeOff})
			}
			id := uint64(0)
			for b.Loop() {
				id++
				each(n, func(i int) {
					got, err := ranks[i].Exchange(context.Background(), id, own[i], nil)
					if err != nil {
						b.Error(err)
						return
					}
					for p, r := range got {
						if p != i {
							release(b, r)
						}
					}
				})
			}
			release(b, own...)
		})
	}
}

// BenchmarkMessage is a message there and one back.
func BenchmarkMessage(b *testing.B) {
	for name, of := range map[string]func(int) int{"sockets": apart, "goroutines": together} {
		b.Run(name, func(b *testing.B) {
			ranks := mesh(b, 2, of)
			data := make([]byte, 64)
			for b.Loop() {
				for i := range 2 {
					if err := ranks[i].Send(1-i, data); err != nil {
						b.Fatal(err)
					}
					<-ranks[1-i].events
				}
			}
		})
	}
}

func BenchmarkCreate(b *testing.B) {
	for name, o := range map[string]Options{
		"lazy":      {Huge: HugeOff},
		"populated": {Huge: HugeOff, Populate: true}, "auto": {Populate: true},
	} {
		b.Run(name, func(b *testing.B) {
			const size = 32 << 20
			b.SetBytes(size)
			for b.Loop() {
				release(b, create(b, size, o))
			}
		})
	}
}
