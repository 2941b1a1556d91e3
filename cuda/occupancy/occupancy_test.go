package occupancy

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// held are claims, each of whose blocks cost their threads.
func (g GPU) claim(threads, blocks int, serial any) Claim {
	return Claim{g.Cost(threads), blocks, serial}
}

func (g GPU) room(held []Claim, threads int, serial any) int {
	return g.Room(held, g.Cost(threads), serial)
}

func TestRoomOfAnEmptyGPU(t *testing.T) {
	g := GPU{SMs: 4, Blocks: 16}
	for threads, want := range map[int]int{1024: 4, 1000: 4, 512: 8, 513: 4, 256: 16, 64: 64, 32: 64, 1: 64} {
		if got := g.room(nil, threads, nil); got != want {
			t.Errorf("room for %d blocks of %d threads, want %d", got, threads, want)
		}
	}
}

func TestRoomBeside(t *testing.T) {
	g := GPU{SMs: 4, Blocks: 16}
	three := g.claim(512, 3, nil)
	four := g.claim(256, 4, nil)
	for _, c := range []struct {
		held          []Claim
		threads, want int
		why           string
	}{
		{
			[]Claim{three},
			256, 4,
			"before a block of 512 threads, 2x512 + 4x256 keep it off fewer than 4 SMs, 513 threads on each",
		},
		{[]Claim{three}, 512, 5, "blocks of one size are counted"},
		{[]Claim{three}, 1024, 1, "each of three keeps a block that needs a whole SM off one"},
		{[]Claim{three, four}, 32, 0, "nothing is left"},
		{[]Claim{four}, 256, 12, "blocks of one size are counted"},
	} {
		if got := g.room(c.held, c.threads, nil); got != c.want {
			t.Errorf("room for %d blocks of %d threads beside %v, want %d: %s", got, c.threads, c.held, c.want, c.why)
		}
	}
}

// TestSerialGroup: claims of a group find room where one of them does, beside one that runs with
// any of them.
func TestSerialGroup(t *testing.T) {
	g := GPU{SMs: 4}
	type rank struct{ rank, group int }
	rooms := func(what string, held []Claim, want ...int) {
		t.Helper()
		var got []int
		for _, serial := range []any{rank{0, 1}, rank{0, 2}, nil, rank{1, 1}} {
			got = append(got, g.room(held, 1024, serial))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: room for %v blocks in the group, in another, in none and in another rank's of "+
				"that number, want %v", what, got, want)
		}
	}
	small := slices.Repeat([]Claim{g.claim(1024, 2, rank{0, 1})}, 3)
	rooms("3 of 4 SMs", append(small, g.claim(1024, 3, rank{0, 1})), 4, 1, 1, 1)
	rooms("2 of 4 SMs", small, 4, 2, 2, 2)
	rooms("and one beside them", append(small, g.claim(1024, 1, nil)), 3, 1, 1, 1)
}

// TestSerialGroupOfSizes: each of a group's kernels may fill the GPU, whatever size its blocks
// have.
func TestSerialGroupOfSizes(t *testing.T) {
	g := GPU{SMs: 4}
	var held []Claim
	for _, threads := range []int{512, 256, 384, 512, 1024, 512} {
		want := 4 * (1024 / threads)
		if got := g.room(held, threads, 7); got != want {
			t.Errorf("room for %d blocks of %d threads, want %d", got, threads, want)
		}
		held = append(held, g.claim(threads, want, 7))
	}
	if got := g.room(held, 32, nil); got != 0 {
		t.Errorf("room for %d blocks beside a full GPU", got)
	}
}

// TestSmallBlockBeside: one small block of another size leaves room for all that fits beside each
// claim of its group.
func TestSmallBlockBeside(t *testing.T) {
	g := GPU{SMs: 132}
	held := []Claim{g.claim(512, 132, 1), g.claim(256, 1, 1)}
	if got := g.room(held, 512, nil); got != 132 {
		t.Errorf("room for %d blocks where 132 fit", got)
	}
	if got := g.room(append(held, g.claim(512, 132, nil)), 512, nil); got != 0 {
		t.Errorf("room for %d blocks where 264 are taken", got)
	}
}

// TestRoomIsSafe places what fits block by block in any order, on any SM that has room: some SM has
// room for every block.
func TestRoomIsSafe(t *testing.T) {
	g := GPU{SMs: 3}
	rapid.Check(t, func(t *rapid.T) {
		var blocks []int // their threads
		var held []Claim
		groups := map[int][][]int{} // the blocks of each claim, by group
		for range rapid.IntRange(1, 7).Draw(t, "claims") {
			threads := 32 * rapid.IntRange(1, 32).Draw(t, "warps")
			group := rapid.IntRange(0, 2).Draw(t, "group")
			var serial any
			if group != 0 {
				serial = group
			}
			room := g.room(held, threads, serial)
			if g.fit(append(slices.Clip(held), g.claim(threads, room+1, serial))) {
				t.Fatalf("more than the room of %d fits", room)
			}
			if room == 0 {
				continue
			}
			n := rapid.IntRange(1, room).Draw(t, "blocks")
			held = append(held, g.claim(threads, n, serial))
			of := slices.Repeat([]int{threads}, n)
			if group == 0 {
				blocks = append(blocks, of...)
			} else {
				groups[group] = append(groups[group], of)
			}
		}
		for group := range 3 { // one claim of each runs
			if claims := groups[group]; len(claims) > 0 {
				blocks = append(blocks, rapid.SampledFrom(claims).Draw(t, "runs")...)
			}
		}
		var free, slots [3]int
		for i := range free {
			free[i], slots[i] = SMThreads, 32
		}
		for _, threads := range rapid.Permutation(blocks).Draw(t, "order") {
			var open []int
			for i := range free {
				if free[i] >= threads && slots[i] > 0 {
					open = append(open, i)
				}
			}
			if len(open) == 0 {
				t.Fatalf("no room for a block of %d threads: %v, %v slots, of %v", threads, free, slots, blocks)
			}
			i := rapid.SampledFrom(open).Draw(t, "SM")
			free[i] -= threads
			slots[i]--
		}
	})
}
