import { EXIT, Failure } from './failure.ts'

const controller = new AbortController()

/** Aborts once the user or the system ends the process. */
export const interruption: AbortSignal = controller.signal

/** Lets commands end in order on the first signal; a second one ends the process immediately. */
export function catchSignals(): void {
  const end = (code: number) => () => {
    if (controller.signal.aborted) process.exit(code)
    controller.abort(new Failure('interrupted', code))
  }
  process.on('SIGINT', end(EXIT.interrupted))
  process.on('SIGTERM', end(EXIT.terminated))
}
