package shm

import (
	"cmp"
	"fmt"
	"os"
)

// HostName is the name by which a rank knows its host: one that it was given, the environment's, or the machine's.
func HostName(given string) (string, error) {
	if given = cmp.Or(given, os.Getenv("WEFT_HOSTID"), os.Getenv("MSCCLPP_HOSTID")); given != "" {
		return given, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("identify host: %w", err)
	}
	return name, nil
}
