//go:build !race

package bootstrap

func wrote() {}

func reads() {}
