package timing

import (
	"errors"
	"slices"
	"sync"
	"testing"
)

func TestTeamsMeet(t *testing.T) {
	const members, rounds = 4, 100
	team := newTeam(t.Context(), members)
	var all sync.WaitGroup
	last := 0 // written by whoever comes last, read by all after
	for me := range members {
		all.Go(func() {
			for round := range rounds {
				got, err := Gather(team, me, me+round)
				if err != nil || !slices.Equal(got, []int{round, round + 1, round + 2, round + 3}) {
					t.Errorf("%v %v", got, err)
				}
				if err := team.Meet(func() { last++ }); err != nil || last != round+1 {
					t.Errorf("%d in round %d, %v", last, round, err)
				}
				if err := team.Meet(nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := team.end(); err != nil {
		t.Error(err)
	}
	team = newTeam(t.Context(), 2)
	why := errors.New("why")
	all.Go(func() {
		if err := team.Meet(nil); !errors.Is(err, why) {
			t.Error(err)
		}
	})
	team.Fail(0, why)
	team.Fail(1, errors.New("another"))
	all.Wait()
	if err := team.end(); !errors.Is(err, why) {
		t.Error(err)
	}
}
