import { z } from 'zod'
import { parseTime } from '#core/api/lists.ts'
import { raiseInvalid } from '#core/base/errors.ts'

export const USAGE_INTERVALS = ['hour', 'day', 'month'] as const
export type Interval = (typeof USAGE_INTERVALS)[number]

/** Most points of a series. */
export const MAX_POINTS = 1000

/** Schema of a time in a query. */
export const timeQuery = z
  .string()
  .refine(value => parseTime(value) !== null, 'must be an ISO 8601 time')
  .transform(value => parseTime(value) as Date)

const intervalStart: Record<Interval, (time: Date) => Date> = {
  hour: time => new Date(Math.floor(time.getTime() / 3_600_000) * 3_600_000),
  day: time => new Date(Date.UTC(time.getUTCFullYear(), time.getUTCMonth(), time.getUTCDate())),
  month: time => new Date(Date.UTC(time.getUTCFullYear(), time.getUTCMonth(), 1)),
}

const nextInterval: Record<Interval, (start: Date) => Date> = {
  hour: start => new Date(start.getTime() + 3_600_000),
  day: start => new Date(start.getTime() + 86_400_000),
  month: start => new Date(Date.UTC(start.getUTCFullYear(), start.getUTCMonth() + 1, 1)),
}

/**
 * Returns the starts of the intervals between two times.
 * @throws VALIDATION_FAILED for more than 1,000 intervals
 */
export function intervalStarts(interval: Interval, from: Date, to: Date): string[] {
  const starts: string[] = []
  for (let start = intervalStart[interval](from); start <= to; start = nextInterval[interval](start)) {
    if (starts.length === MAX_POINTS)
      raiseInvalid({ code: 'TOO_BIG', path: 'interval', message: `must result in at most ${MAX_POINTS} points` })
    starts.push(start.toISOString())
  }
  return starts
}
