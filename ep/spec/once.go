package spec

import (
	"os"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/thresholds"
)

// CopiesVariable is the variable of the environment that says how often kernels and port channels take a row of a
// dispatch to another host, the same on all ranks: "rank", once to each rank that wants it, as without the variable;
// or "host", once to the host, where that pays.
const CopiesVariable = "WEFT_EP_COPIES"

// CopiesByHost reads the variable.
func CopiesByHost() (host bool, err error) {
	switch text := os.Getenv(CopiesVariable); text {
	case "", "rank":
		return false, nil
	case "host":
		return true, nil
	default:
		return false, weft.Invalidf("%s=%s: set it to rank or host", CopiesVariable, text)
	}
}

// OncePerHost says whether a dispatch by port channels takes a row once to each host, whose ranks are on the given
// hosts. Between hosts of one rank each there is nothing to spare. Elsewhere the row goes one step further, inside the
// host, so the bytes that a rank spares must be worth it: rows of MaxTokens tokens whose experts are drawn evenly. All
// ranks find the same.
func (s Spec) OncePerHost(hosts []int) bool {
	s = s.Normalize()
	size := map[int]int{}
	for _, h := range hosts {
		size[h]++
	}
	if len(size) == len(hosts) {
		return false
	}
	local := s.Experts / len(hosts)
	far, spared := 0, 0.0 // pairs of a rank and another host; copies of a token, of all pairs
	for h := range len(size) {
		n := size[h]
		far += len(hosts) - n
		spared += float64(float64(len(hosts)-n) * (float64(float64(n)*s.touches(local)) - s.touches(n*local)))
	}
	if far == 0 {
		return false
	}
	return float64(spared/float64(len(hosts)))*float64(s.MaxTokens*(s.RowSize()+(s.ScaleSize()+15)&^15)) >=
		float64(thresholds.HostCopyBytes)
}

// touches is how probable it is that a token has an expert among so many, where all sets of experts are as probable.
func (s Spec) touches(experts int) float64 {
	none := 1.0
	for k := range s.TopK {
		none *= max(0, float64(s.Experts-experts-k)) / float64(s.Experts-k)
	}
	return 1 - none
}
