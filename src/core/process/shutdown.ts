import { ConfigError } from '../../config.ts'
import type { Logger } from './log.ts'

/** npm hands on the SIGINT that a terminal has sent to all of its processes: the echo is no second signal. */
const ECHO_MS = 500

/** Calls `first` on the first SIGTERM, SIGINT or SIGHUP and `again` on every later one. */
export function onShutdownSignal(first: (signal: NodeJS.Signals) => void, again: () => void): void {
  let askedAt: number | undefined
  const asked = (signal: NodeJS.Signals) => {
    if (askedAt === undefined) {
      askedAt = performance.now()
      first(signal)
    } else if (performance.now() - askedAt > ECHO_MS) again()
  }
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, asked)
}

/** What `load` gives; ends the process with a line on stderr when the configuration cannot be used. */
export function loadConfigOrExit<T>(load: () => T): T {
  try {
    return load()
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    process.stderr.write(`${error.message}\n`)
    return process.exit(1)
  }
}

/**
 * Runs a program until SIGTERM, SIGINT or SIGHUP, then stops it once and exits 0; exits 1 when it cannot start or stop.
 * A second signal ends the process at once.
 */
export async function runUntilShutdown(log: Logger, start: () => Promise<{ stop(): Promise<void> }>): Promise<void> {
  process.on('unhandledRejection', error => log.error({ err: error }, 'unhandled rejection'))
  let running: { stop(): Promise<void> } | undefined
  const stop = (signal: NodeJS.Signals) => {
    log.info({ signal }, 'stopping')
    if (!running) process.exit(0)
    running.stop().then(
      () => process.exit(0),
      error => {
        log.error({ err: error }, 'stop failed')
        process.exit(1)
      },
    )
  }
  onShutdownSignal(stop, () => process.exit(1))
  try {
    running = await start()
  } catch (error) {
    log.fatal({ err: error }, 'start failed')
    process.exit(1)
  }
}
