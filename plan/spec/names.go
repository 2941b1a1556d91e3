package spec

import (
	"fmt"
	"slices"
)

// ParseKind is the operation that has a name in files.
func ParseKind(name string) (Kind, error) {
	if k, ok := byName[name]; ok {
		return k, nil
	}
	return 0, fmt.Errorf("no operation is named %q", name)
}

// ParseChannelType is the type of channel that has a name in files. Operations without one have "".
func ParseChannelType(name string) (ChannelType, error) {
	t, err := parse("type of channel", channelNames[:], name)
	return ChannelType(t), err
}

// ParseReduction is the reduction that has a name in files. Operations without one have "".
func ParseReduction(name string) (Reduction, error) {
	r, err := parse("reduction", reductionNames[:], name)
	return Reduction(r), err
}

// ParseBuffer is the buffer that has a letter in files: i, o or s.
func ParseBuffer(letter string) (Buffer, error) {
	b, err := parse("buffer", []string{"i", "o", "s"}, letter)
	return Buffer(b), err
}

func parse(of string, names []string, name string) (int, error) {
	i := slices.Index(names, name)
	if i < 0 {
		return 0, fmt.Errorf("no %s is named %q", of, name)
	}
	return i, nil
}

// Fits says whether the operation has the sources and destinations of its kind, but for their buffers.
func (op *Op) Fits() bool {
	rule := &rules[op.Kind]
	return matches(rule.src, op.Src) && matches(rule.dst, op.Dst)
}
