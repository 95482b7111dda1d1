/** A command that cannot do what it was asked. `fix` says what to do about it. */
export class CommandError extends Error {
  readonly fix?: string
  constructor(message: string, fix?: string) {
    super(message)
    this.fix = fix
  }
}

/** What `muster doctor` found out about one thing, and how to fix it. */
export type Check = { name: string; status: 'ok' | 'warn' | 'fail'; detail: string; fix?: string }

/** Prints a line of a result on stdout. */
export const print = (text = ''): void => void process.stdout.write(`${text}\n`)

/** Prints a result as one JSON document. */
export const printJson = (value: unknown): void => print(JSON.stringify(value, null, 2))

/** Prints what goes on, on stderr, so that a result on stdout stays alone. */
export const printProgress = (text: string): void => void process.stderr.write(`${text}\n`)

/** Rows as aligned columns under a heading, or `none` without rows. */
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
 * What a failure says to a user: the message with that of its cause, and the code of a refusal. A connection that was
 * refused on every address of its host has no message of its own.
 */
export function describeError(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { code, cause } = error as Error & { code?: string; cause?: unknown }
  const first = error instanceof AggregateError ? error.errors.map(describeError).join('; ') : ''
  const message = error.message || first || code || error.name
  const reason = cause instanceof Error ? describeError(cause) : ''
  return reason && !message.includes(reason) ? `${message}: ${reason}` : message
}
