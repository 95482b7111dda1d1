import { LRUCache } from 'lru-cache'
import { raise } from '../../core/api/errors.ts'

/**
 * Parsed cron expression of five fields. The parser is strict: seconds, `@daily`, `L` and `W`, which libraries accept,
 * are not part of the API.
 */
export type Cron = {
  minutes: readonly number[]
  hours: readonly number[]
  days: ReadonlySet<number>
  months: ReadonlySet<number>
  weekdays: ReadonlySet<number>
  /** Whether day of month and day of week are both restricted: a day then matches by either. */
  eitherDay: boolean
  /** Whether the hours are `*` or a step of it: local times in a clock shift are then skipped or repeated. */
  followsClock: boolean
}

type Field = { name: string; from: number; to: number; names?: readonly string[] }

const MONTHS = ['JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC']
const WEEKDAYS = ['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT']

const FIELDS: readonly Field[] = [
  { name: 'minute', from: 0, to: 59 },
  { name: 'hour', from: 0, to: 23 },
  { name: 'day of the month', from: 1, to: 31 },
  { name: 'month', from: 1, to: 12, names: MONTHS },
  { name: 'day of the week', from: 0, to: 7, names: WEEKDAYS },
]

const DAYS_IN_MONTH = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

const refuse = (message: string): never => raise('INVALID_CRON_EXPRESSION', { message, meta: { field: 'cron' } })

function parseValue(text: string, { name, from, to, names }: Field): number {
  const index = names?.indexOf(text.toUpperCase()) ?? -1
  if (index >= 0) return index + (from === 1 ? 1 : 0)
  const value = /^\d{1,2}$/.test(text) ? Number(text) : Number.NaN
  return value >= from && value <= to ? value : refuse(`${JSON.stringify(text)} is not a valid ${name}`)
}

/** Returns the values of one list item: a value, or `*` or a range with an optional step. */
function parseListItem(part: string, field: Field): number[] {
  const { name, from, to } = field
  const [base, stepText, ...rest] = part.split('/')
  const isRange = base === '*' || base.includes('-')
  if (rest.length > 0 || (stepText !== undefined && !isRange)) refuse(`${JSON.stringify(part)} is not a valid ${name}`)
  const step = stepText === undefined ? 1 : /^\d{1,2}$/.test(stepText) ? Number(stepText) : 0
  if (step < 1 || step > to) refuse(`The step of the ${name} must be from 1 to ${to}`)
  const ends = base === '*' ? [from, to] : base.split('-').map(end => parseValue(end, field))
  const [first, last = first] = ends
  if (ends.length > 2 || first > last) refuse(`${JSON.stringify(part)} is not a valid ${name}`)
  const values: number[] = []
  for (let value = first; value <= last; value += step) values.push(value)
  return values
}

const isStar = (text: string): boolean => text.startsWith('*')

/**
 * Parses a cron expression.
 * @throws INVALID_CRON_EXPRESSION if it is malformed or never occurs
 */
export function parseCron(text: string): Cron {
  const parts = text.trim().split(/[ \t]+/)
  if (parts.length !== FIELDS.length) refuse('A cron expression must have five fields')
  const [minutes, hours, days, months, weekdays] = FIELDS.map((field, index) => [
    ...new Set(parts[index].split(',').flatMap(part => parseListItem(part, field))),
  ])
  const eitherDay = !isStar(parts[2]) && !isStar(parts[4])
  // Every month contains each day of the week, but not each day of the month.
  if (!eitherDay && !months.some(month => days.some(day => day <= DAYS_IN_MONTH[month - 1])))
    refuse('The cron expression never occurs: none of its months has the day')
  const ascending = (values: number[]) => values.sort((a, b) => a - b)
  return {
    minutes: ascending(minutes),
    hours: ascending(hours),
    days: new Set(days),
    months: new Set(months),
    weekdays: new Set(weekdays.map(day => day % 7)),
    eitherDay,
    followsClock: isStar(parts[1]),
  }
}

/** Whether a name is an IANA time zone. */
export function isTimezone(name: string): boolean {
  try {
    // Intl also accepts offsets, which are not zones.
    return !/^[+-]/.test(name) && zoneFormat(name) !== null
  } catch {
    return false
  }
}

const formats = new LRUCache<string, Intl.DateTimeFormat>({ max: 1000 })

function zoneFormat(zone: string): Intl.DateTimeFormat {
  let format = formats.get(zone)
  if (!format) {
    const digits = { year: 'numeric', month: 'numeric', day: 'numeric', hour: 'numeric', minute: 'numeric' } as const
    format = new Intl.DateTimeFormat('en-US', { ...digits, timeZone: zone, hourCycle: 'h23', era: 'short' })
    formats.set(zone, format)
  }
  return format
}

const MINUTE = 60_000
const DAY = 24 * 60 * MINUTE

/** Returns the local time of an instant of whole minutes, encoded as a UTC timestamp. */
function localTimeOf(instant: number, zone: string): number {
  if (zone === 'UTC') return instant
  const parts: Record<string, number> = {}
  for (const { type, value } of zoneFormat(zone).formatToParts(instant)) parts[type] = Number(value)
  return Date.UTC(parts.year, parts.month - 1, parts.day, parts.hour, parts.minute)
}

/** Search horizon: 29 February skips 2100, and a given weekday on 29 February may take 40 years. */
const HORIZON_DAYS = 366 * 41

/** Period with a constant offset. */
type OffsetPeriod = { from: number; to: number; offset: number }

const HOUR = 60 * MINUTE
/** More than the largest offset of any zone, 14 hours. */
const MAX_OFFSET = 15 * HOUR

const periodCache = new LRUCache<string, OffsetPeriod[]>({ max: 2000 })

const offsetAt = (instant: number, zone: string): number => localTimeOf(instant, zone) - instant

/** Returns the offset periods that a local day may overlap: two if the clock is shifted. */
function offsetPeriods(day: number, zone: string): OffsetPeriod[] {
  const key = `${zone} ${day}`
  let periods = periodCache.get(key)
  if (periods) return periods
  const [start, end] = [day - MAX_OFFSET, day + DAY + MAX_OFFSET]
  periods = [{ from: start, to: end, offset: offsetAt(start, zone) }]
  if (zone !== 'UTC')
    for (let hour = start + HOUR; hour <= end; hour += HOUR) {
      const last = periods[periods.length - 1]
      const offset = offsetAt(hour, zone)
      if (offset === last.offset) continue
      // Binary search for the minute of the shift.
      let [before, after] = [hour - HOUR, hour]
      while (after - before > MINUTE) {
        const middle = before + Math.floor((after - before) / 2 / MINUTE) * MINUTE
        if (offsetAt(middle, zone) === last.offset) before = middle
        else after = middle
      }
      last.to = after
      periods.push({ from: after, to: end, offset })
    }
  periodCache.set(key, periods)
  return periods
}

/**
 * Yields the instants of a local day at which an expression occurs, in order. See `nextFiringTime` for clock shifts.
 */
function* occurrencesOn(cron: Cron, day: number, zone: string): Generator<number> {
  const periods = offsetPeriods(day, zone)
  const instantsOf = (local: number): number[] =>
    periods.flatMap(({ from, to, offset }) => (local - offset >= from && local - offset < to ? local - offset : []))
  if (periods.length === 1) {
    for (const local of localTimes(cron, day)) yield local - periods[0].offset
    return
  }
  const instants = new Set<number>()
  for (const local of localTimes(cron, day)) {
    const matches = instantsOf(local)
    if (cron.followsClock) for (const instant of matches) instants.add(instant)
    else instants.add(matches[0] ?? shiftSkipping(periods, local))
  }
  yield* [...instants].sort((a, b) => a - b)
}

function* localTimes({ hours, minutes }: Cron, day: number): Generator<number> {
  for (const hour of hours) for (const minute of minutes) yield day + hour * HOUR + minute * MINUTE
}

/** Returns the instant of the clock shift that skips a local time. */
const shiftSkipping = (periods: readonly OffsetPeriod[], local: number): number =>
  (periods.find(({ from, offset }) => from + offset > local) ?? periods[periods.length - 1]).from

/**
 * Returns the next occurrence of an expression after an instant. A local time that a clock shift skips occurs once, at
 * the shift; a local time that a shift repeats occurs at its first instance. If the hour is `*` or a step of it,
 * skipped times do not occur and repeated times occur twice.
 */
export function nextFiringTime(cron: Cron, after: Date, zone = 'UTC'): Date {
  const from = after.getTime()
  const first = Math.floor(localTimeOf(Math.floor(from / MINUTE) * MINUTE, zone) / DAY) - 1
  for (let number = first; number < first + HORIZON_DAYS; number++) {
    const day = number * DAY
    if (!matchesDay(cron, new Date(day))) continue
    for (const instant of occurrencesOn(cron, day, zone)) if (instant > from) return new Date(instant)
  }
  return refuse('The cron expression never occurs')
}

function matchesDay({ months, days, weekdays, eitherDay }: Cron, date: Date): boolean {
  if (!months.has(date.getUTCMonth() + 1)) return false
  const day = days.has(date.getUTCDate())
  const weekday = weekdays.has(date.getUTCDay())
  return eitherDay ? day || weekday : day && weekday
}

const cronCache = new LRUCache<string, Cron>({ max: 5000 })

/** Returns the next occurrence of a cron expression after an instant. Caches the parsed expression. */
export function nextOccurrence(text: string, zone: string | null, after: Date): Date {
  let cron = cronCache.get(text)
  if (!cron) {
    cron = parseCron(text)
    cronCache.set(text, cron)
  }
  return nextFiringTime(cron, after, zone ?? 'UTC')
}
