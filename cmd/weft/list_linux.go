package main

import (
	"errors"
	"strconv"
	"strings"
)

// counts is a flag that holds a comma-separated list of positive numbers.
type counts []int

func (c *counts) String() string {
	var words []string
	for _, v := range *c {
		words = append(words, strconv.Itoa(v))
	}
	return strings.Join(words, ",")
}

func (c *counts) Set(s string) error {
	*c = nil
	for word := range strings.SplitSeq(s, ",") {
		v, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || v < 1 {
			return errors.New("want whole numbers from 1 on, as 2,4")
		}
		*c = append(*c, v)
	}
	return nil
}

// choices are counts for which 0 is the library's choice.
type choices struct{ counts }

func (c *choices) Set(s string) error {
	var list counts
	for word := range strings.SplitSeq(s, ",") {
		var one counts
		switch word = strings.TrimSpace(word); word {
		case "0":
			one = counts{0}
		default:
			if err := one.Set(word); err != nil {
				return errors.New("want whole numbers from 0 on, as 0,24")
			}
		}
		list = append(list, one...)
	}
	c.counts = list
	return nil
}

func (c *counts) Type() string { return "list" }

// sizes is a flag that holds a comma-separated list of byte counts; K, M and G are
// binary.
type sizes []int64

func (z *sizes) String() string {
	var words []string
	for _, v := range *z {
		unit := ""
		for _, u := range []string{"K", "M", "G"} {
			if v >= 1024 && v%1024 == 0 {
				v, unit = v/1024, u
			}
		}
		words = append(words, strconv.FormatInt(v, 10)+unit)
	}
	return strings.Join(words, ",")
}

func (z *sizes) Set(s string) error {
	*z = nil
	for word := range strings.SplitSeq(s, ",") {
		word = strings.TrimSpace(word)
		digits := strings.TrimRight(word, "KMGkmg")
		v, err := strconv.ParseInt(digits, 10, 64)
		shift, ok := map[string]int{"": 0, "K": 10, "M": 20, "G": 30}[strings.ToUpper(word[len(digits):])]
		if err != nil || !ok || v < 1 || v > 1<<40>>shift {
			return errors.New("want sizes up to 1024G, as 8,64K,1M")
		}
		*z = append(*z, v<<shift)
	}
	return nil
}

func (z *sizes) Type() string { return "list" }

// size is a flag that holds one byte count, in the same units; 0: none was given.
type size int64

func (z *size) String() string {
	if *z == 0 {
		return ""
	}
	return (&sizes{int64(*z)}).String()
}

func (z *size) Set(s string) error {
	var one sizes
	if one.Set(s) != nil || len(one) != 1 {
		return errors.New("want a size from 1 to 1024G, as 64K")
	}
	*z = size(one[0])
	return nil
}

func (z *size) Type() string { return "size" }
