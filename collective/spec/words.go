package spec

import "github.com/weftgo/weft"

// Words are 64-bit words by which an operation and what runs beside it meet part by part: as many for each
// rank, which cut that rank's part into chunks of equal length, whole vectors of 16 bytes, of which the last
// ones may be shorter or empty.
//
// Progress, of an all-gather: a word is raised by one when its chunk has landed in the output. Ready, of a
// reduce-scatter: a chunk of the input is read when its word is not 0, and the word is made 0 when it has
// been read.
//
// Words of masked ranks stay as they are: nothing lands for them, and nothing is read. A ready word that is not 0
// when its rank is taken in again is one that the next call need not wait for.
type Words struct{ Progress, Ready weft.Tensor }

// Given says whether there are any.
func (w *Words) Given() bool { return !w.Progress.IsZero() || !w.Ready.IsZero() }

// Of is the one tensor that a collective has.
func (w *Words) Of(k Collective) *weft.Tensor {
	if k == ReduceScatter {
		return &w.Ready
	}
	return &w.Progress
}

// Chunk is how many bytes a chunk has at most, of a part of so many, if there are so many words for it.
func Chunk(part, words int) int {
	return (part + vectorBytes*words - 1) / (vectorBytes * words) * vectorBytes
}

const vectorBytes = 16

// checkWords says what is wrong with a call's words.
func (c *Call) checkWords(ranks int) error {
	k, w := c.Collective, &c.Words
	if !w.Progress.IsZero() && k != AllGather || !w.Ready.IsZero() && k != ReduceScatter {
		return weft.Invalidf("%v: an all-gather has progress words, a reduce-scatter ready words, and nothing else", k)
	}
	t := w.Of(k)
	n, err := checkTensor(k.String(), "words", t)
	switch {
	case err != nil:
		return err
	case t.DType != weft.Uint64 && t.DType != weft.Int64 || n == 0 || n%ranks != 0 || uintptr(t.Data)%8 != 0:
		return weft.Invalidf("%v: words of %v; they are as many aligned 64-bit integers for each of %d ranks", k, t, ranks)
	case overlap(t, &c.Out) || overlap(t, &c.In):
		return weft.Invalidf("%v: words and operands overlap", k)
	}
	return nil
}
