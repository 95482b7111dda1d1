#!/usr/bin/env node
import { CommanderError } from 'commander'
import { CommandError, describe, note } from '../src/cli/output.ts'
import { program } from '../src/cli/program.ts'
import { ConfigError } from '../src/config.ts'

// 0: done, 1: failed, 2: wrong usage.
try {
  await program().parseAsync()
} catch (error) {
  if (error instanceof CommanderError) process.exit(error.exitCode === 0 ? 0 : 2)
  note(`muster: ${describe(error)}`)
  if (error instanceof CommandError && error.fix) note(error.fix)
  if (error instanceof ConfigError) note('muster settings lists every setting; muster doctor checks them all.')
  process.exit(1)
}
