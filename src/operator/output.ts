/** A command failed. `fix` is a hint for the user. */
export class CommandError extends Error {
  readonly fix?: string
  constructor(message: string, fix?: string) {
    super(message)
    this.fix = fix
  }
}

/** Result of one check of `muster doctor`, with a hint if it did not pass. */
export type Check = { name: string; status: 'ok' | 'warn' | 'fail'; detail: string; fix?: string }

/** Prints a line of a result on stdout. */
export const print = (text = ''): void => void process.stdout.write(`${text}\n`)

/** Prints a result as one JSON document. */
export const printJson = (value: unknown): void => print(JSON.stringify(value, null, 2))

/** Prints progress on stderr, so that stdout contains only the result. */
export const printProgress = (text: string): void => void process.stderr.write(`${text}\n`)

/** Prints a line for each check, and its fix. Sets exit code 1 if one failed. */
export function printChecks(checks: readonly Check[], { json }: { json?: boolean }): void {
  const failed = checks.some(({ status }) => status === 'fail')
  if (json) printJson({ ok: !failed, checks })
  else {
    const width = Math.max(...checks.map(({ name }) => name.length))
    for (const { name, status, detail, fix } of checks) {
      print(`${status.padEnd(4)}  ${name.padEnd(width)}  ${detail}`)
      if (fix) print(`${' '.repeat(width + 8)}${fix}`)
    }
  }
  if (failed) process.exitCode = 1
}

/** Formats rows as aligned columns with a heading, or returns `none` without rows. */
export function table(columns: readonly string[], rows: readonly (string | number)[][], none: string): string {
  if (rows.length === 0) return none
  const cells = [columns, ...rows.map(row => row.map(String))]
  const widths = columns.map((_, index) => Math.max(...cells.map(row => row[index].length)))
  return cells
    .map(row =>
      row
        .map((cell, index) => cell.padEnd(widths[index]))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}

/**
 * Returns the message of an error with the message of its cause. A connection refused on every address of its host is
 * an AggregateError without a message, described by its parts.
 */
export function describeError(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { code, cause } = error as Error & { code?: string; cause?: unknown }
  const first = error instanceof AggregateError ? error.errors.map(describeError).join('; ') : ''
  const message = error.message || first || code || error.name
  const reason = cause instanceof Error ? describeError(cause) : ''
  return reason && !message.includes(reason) ? `${message}: ${reason}` : message
}
