package lowering

// set is a set of numbers in the order in which CPython lists one. Signals, waits and flushes list their channels
// in that order. It means nothing, for each channel has a thread of its own, but a text that is to be the same has
// it.
//
// It is an open table of 2^m slots. Slots are free where they are -1.
type set []int

// Numbers are looked for at this many places in a row before the next jump.
const inARow = 9

func newSet(numbers ...int) set {
	s := free(8)
	for _, n := range numbers {
		s = s.add(n)
	}
	return s
}

func free(n int) set {
	s := make(set, n)
	for i := range s {
		s[i] = -1
	}
	return s
}

// list is the numbers in order.
func (s set) list() []int {
	all := []int{}
	for _, n := range s {
		if n >= 0 {
			all = append(all, n)
		}
	}
	return all
}

// find is the slot that a number has or would have.
func (s set) find(n int) int {
	mask := len(s) - 1
	perturb, i := uint(n), n&mask
	for {
		row := 0
		if i+inARow <= mask {
			row = inARow
		}
		for k := i; k <= i+row; k++ {
			if s[k] < 0 || s[k] == n {
				return k
			}
		}
		perturb >>= 5
		i = int(uint(i)*5+1+perturb) & mask
	}
}

// add puts a number in, and makes room for more when three fifths of the slots are taken.
func (s set) add(n int) set {
	i := s.find(n)
	if s[i] == n {
		return s
	}
	s[i] = n
	if fill := len(s.list()); 5*fill >= 3*(len(s)-1) {
		return s.grow(4 * fill)
	}
	return s
}

// grow is the set in the smallest table of more than so many slots.
func (s set) grow(more int) set {
	size := 8
	for size <= more {
		size *= 2
	}
	to := free(size)
	for _, n := range s.list() {
		to[to.find(n)] = n
	}
	return to
}

// merge puts all of another set in.
func (s set) merge(o set) set {
	mine, theirs := len(s.list()), len(o.list())
	if theirs == 0 {
		return s
	}
	if 5*(mine+theirs) >= 3*(len(s)-1) {
		s = s.grow(2 * (mine + theirs))
	}
	if mine == 0 {
		if len(s) == len(o) {
			copy(s, o)
			return s
		}
		for _, n := range o.list() {
			s[s.find(n)] = n
		}
		return s
	}
	for _, n := range o.list() {
		s = s.add(n)
	}
	return s
}

// union is what a | b is, after it was given to an operation, which copies it.
func (s set) union(o set) set { return free(8).merge(free(8).merge(s).merge(o)) }

// meets says whether two sets have a number in common.
func (s set) meets(o set) bool {
	for _, n := range o.list() {
		if s[s.find(n)] == n {
			return true
		}
	}
	return false
}
