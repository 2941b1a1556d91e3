package spec

// Slab allocates the objects that operations return, 32 at a time. Invariant: no object is reused.
// A caller that releases one twice therefore cannot release another call's object.
type Slab[T any] struct{ left []T }

func (s *Slab[T]) Take() *T {
	if len(s.left) == 0 {
		s.left = make([]T, 32)
	}
	v := &s.left[0]
	s.left = s.left[1:]
	return v
}
