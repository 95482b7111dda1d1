import { CommanderError } from 'commander'
import { ConfigError } from '#core/base/config.ts'
import { CommandError, describeError, printProgress } from './output.ts'
import { program } from './program.ts'

/** Runs a command line. Returns 0 on success, 1 on failure, 2 for wrong usage. A command may set another exit code. */
export async function main(args: readonly string[]): Promise<0 | 1 | 2> {
  try {
    await program().parseAsync(args, { from: 'user' })
    return 0
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2
    printProgress(`muster: ${describeError(error)}`)
    if (error instanceof CommandError && error.fix) printProgress(error.fix)
    if (error instanceof ConfigError)
      printProgress('Run muster settings for a list of all settings, muster doctor to check them.')
    return 1
  }
}
