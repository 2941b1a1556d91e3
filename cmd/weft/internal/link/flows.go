package link

import "slices"

// patterns are those that differ among so many GPUs.
func patterns(gpus int) []Pattern {
	switch gpus {
	case 1:
		return []Pattern{Local}
	case 2:
		return []Pattern{AllToAll, Pair}
	default:
		return []Pattern{AllToAll, Pair, AllToOne}
	}
}

// flows has the receivers of every sender, in the order in which it takes them. Senders begin with
// different receivers.
func flows(p Pattern, gpus int) [][]int {
	to := make([][]int, gpus)
	switch p {
	case Local:
		to[0] = []int{0}
	case Pair:
		to[0] = []int{1}
	case AllToOne:
		for sender := 1; sender < gpus; sender++ {
			to[sender] = []int{0}
		}
	case AllToAll:
		for sender := range gpus {
			for k := 1; k < gpus; k++ {
				to[sender] = append(to[sender], (sender+k)%gpus)
			}
		}
	}
	return to
}

// turned has the senders of every receiver.
func turned(to [][]int) [][]int {
	from := make([][]int, len(to))
	for k := range to {
		for receiver := range to {
			sender := (receiver + k) % len(to)
			if slices.Contains(to[sender], receiver) {
				from[receiver] = append(from[receiver], sender)
			}
		}
	}
	return from
}

// most is how many flows leave a GPU, or reach one, where there are the most.
func most(to [][]int) int {
	n := 0
	for i, from := range turned(to) {
		n = max(n, len(from), len(to[i]))
	}
	return n
}
