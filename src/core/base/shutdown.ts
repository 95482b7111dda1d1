import { ConfigError } from './config.ts'
import type { Logger } from './log.ts'

/** Time in which a second signal is ignored: npm forwards a SIGINT that the terminal already sent to all its processes. */
const ECHO_MS = 500

/** Calls `first` on the first SIGTERM, SIGINT or SIGHUP and `again` on every later one. */
export function onShutdownSignal(first: (signal: NodeJS.Signals) => void, again: () => void): void {
  let signalledAt: number | undefined
  const onSignal = (signal: NodeJS.Signals) => {
    if (signalledAt === undefined) {
      signalledAt = performance.now()
      first(signal)
    } else if (performance.now() - signalledAt > ECHO_MS) again()
  }
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, onSignal)
}

/** Returns the result of `load`; if the configuration is invalid, prints it to stderr and exits. */
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
 * Runs a program until SIGTERM, SIGINT or SIGHUP, then stops it and exits with 0; exits with 1 if it fails to start or stop.
 * A second signal exits immediately.
 */
export async function runUntilShutdown(log: Logger, start: () => Promise<{ stop(): Promise<void> }>): Promise<void> {
  process.on('unhandledRejection', error => log.error({ err: error }, 'unhandled rejection'))
  let running: { stop(): Promise<void> } | undefined
  const stop = (signal: NodeJS.Signals) => {
    log.info({ signal }, 'shutdown started')
    if (!running) process.exit(0)
    running.stop().then(
      () => process.exit(0),
      error => {
        log.error({ err: error }, 'shutdown failed')
        process.exit(1)
      },
    )
  }
  onShutdownSignal(stop, () => process.exit(1))
  try {
    running = await start()
  } catch (error) {
    log.fatal({ err: error }, 'startup failed')
    process.exit(1)
  }
}
