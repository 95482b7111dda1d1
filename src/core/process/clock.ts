/** Where time comes from. Rules that depend on time take a clock, so that tests can move it. */
export type Clock = { now(): Date }

export const systemClock: Clock = { now: () => new Date() }

/** A clock that stands still until it is moved. */
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
