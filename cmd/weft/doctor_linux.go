package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/doctor"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
)

func newDoctor() *cobra.Command {
	var asJSON bool
	need := doctor.NeedHost
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine this machine, and say what each finding means for Weft",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := doctor.Collect(doctor.System(version()))
			findings := doctor.Findings(m)
			verdict := doctor.Judge(m, findings, need)
			var err error
			if asJSON {
				err = doctor.JSON(cmd.OutOrStdout(), m, verdict)
			} else {
				err = doctor.Table(cmd.OutOrStdout(), findings, verdict, terminal.Color(os.Stdout))
			}
			if err == nil && !verdict.Ready {
				return exitError{status: 1}
			}
			return err
		},
	}
	describe(cmd, "doctor")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	oneOf(cmd, &need, "require", doctor.Needs, "what this machine must be ready for")
	return cmd
}
