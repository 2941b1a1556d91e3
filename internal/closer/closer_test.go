package closer

import (
	"errors"
	"slices"
	"testing"
)

func TestStackClosesTheLastFirst(t *testing.T) {
	var s Stack
	var order []int
	wrong := errors.New("wrong")
	for i := range 3 {
		s.Add(func() error {
			if order = append(order, i); i == 1 {
				return wrong
			}
			return nil
		})
	}
	if err := s.Close(); !errors.Is(err, wrong) || !slices.Equal(order, []int{2, 1, 0}) {
		t.Errorf("%v, %v", order, err)
	}
	if err := s.Close(); err != nil || len(order) != 3 {
		t.Errorf("again: %v, %v", order, err)
	}
}
