/** Source of the current time. Time-dependent rules use a clock, so that tests can set it. */
export type Clock = { now(): Date }

let correctionMs = 0

/**
 * The time of the operating system, corrected to the time of the database where the two differ by seconds: rows of this
 * process would otherwise lie in the future of others.
 */
export const systemClock: Clock = { now: () => new Date(systemTime()) }

/** The time of the system clock in milliseconds, without a Date for the many that are only compared. */
export const systemTime = (): number => Date.now() + correctionMs

/** Returns the time of the system clock in `ms` milliseconds. */
export const timeIn = (ms: number): Date => new Date(systemClock.now().getTime() + ms)

/** Returns a time of PostgreSQL as responses have it. */
export const toWireTime = (time: string | null): string | null => time && new Date(time).toISOString()

/** Sets the correction of the system clock. */
export function correctSystemClock(ms: number): void {
  correctionMs = ms
}

/** Returns a clock that changes only by `advance` and `set`. */
export function manualClock(start = new Date()): Clock & { advance(ms: number): void; set(time: Date): void } {
  let time = start.getTime()
  return {
    now: () => new Date(time),
    advance: ms => {
      time += ms
    },
    set: value => {
      time = value.getTime()
    },
  }
}
