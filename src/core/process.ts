import type { Logger } from './log.ts'

/**
 * Runs a program until SIGTERM or SIGINT, then stops it once and exits 0; exits 1 when it cannot start or stop. A
 * second signal ends the process at once.
 */
export async function untilStopped(log: Logger, start: () => Promise<{ stop(): Promise<void> }>): Promise<void> {
  process.on('unhandledRejection', error => log.error({ err: error }, 'unhandled rejection'))
  let running: { stop(): Promise<void> } | undefined
  let asked = false
  const stop = (signal: NodeJS.Signals) => {
    if (asked) process.exit(1)
    asked = true
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
  process.on('SIGTERM', stop)
  process.on('SIGINT', stop)
  try {
    running = await start()
  } catch (error) {
    log.fatal({ err: error }, 'start failed')
    process.exit(1)
  }
}
