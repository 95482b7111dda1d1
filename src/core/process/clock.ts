/** Source of the current time. Time-dependent rules use a clock, so that tests can set it. */
export type Clock = { now(): Date }

export const systemClock: Clock = { now: () => new Date() }

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
